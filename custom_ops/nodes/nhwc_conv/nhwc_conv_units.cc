#include "nodes/nhwc_conv/nhwc_conv_units.h"

#include <algorithm>

#include "figures/convolution.h"
#include "figures/nhwc_conv.h"
#include "figures/nhwc_kernels.h"
#include "kernels/kernels.h"
#include "plan/cost.h"
#include "platform/caches.h"
#include "platform/integers.h"

namespace onnxfuse {
namespace {

void divide_channels(const NhwcConv& node, NhwcConvPlan* plan) {
  const ConvGeometry& g = plan->geometry;
  plan->images = g.batch;
  plan->pixels = plan->out_pixels;
  const int64_t channels = std::min(kNhwcChannelsAtOnce, g.in_channels);
  const int64_t fitting = kNhwcReadElements / (g.kernel[1] * channels) / g.strides[2];
  int64_t parts = divide_up(g.out[2], std::max(fitting, kNhwcLeastColumns));
  // Alike for two threads.
  if (plan->by_columns && g.out[2] >= 2 * kNhwcLeastColumns) parts = round_up(parts, int64_t{2});
  plan->tile_columns = divide_up(g.out[2], parts);
  // With the channels first the epilogue runs on each row of each channel by itself, unless rows are whole.
  plan->columns_at_once = node.nhwc_output ? plan->tile_columns : g.out[2];
  const int64_t column_units = divide_up(g.out[2], plan->columns_at_once);
  const int64_t room = std::clamp<int64_t>(kNhwcRowResults / (plan->columns_at_once * g.out_channels), 1, g.out[1]);
  double least = 0.0;
  for (int64_t rows = 1; rows <= room; ++rows) {
    // In rows of results: what is read, that of the rows beside them too, and the time of a unit however small.
    const auto extent = static_cast<double>((rows - 1) * g.strides[1] + g.kernel[1]);
    const double read = kNhwcReadRows * extent / static_cast<double>(g.strides[1]);
    const double unit = static_cast<double>(rows) + read + kNhwcUnitRows;
    const int64_t units = divide_up(g.out[1], rows);
    const double cost = unit * static_cast<double>(units) * imbalance(units * column_units * g.batch);
    if (rows > 1 && cost >= least) continue;
    least = cost;
    plan->rows_at_once = rows;
  }
  plan->pixel_units = divide_up(g.out[1], plan->rows_at_once) * column_units;
  plan->pixels_at_once = plan->rows_at_once * plan->columns_at_once;
  plan->filters_at_once = g.out_channels;
}

// Whether the weights are too many to stay in the level 2 cache for the next unit, beside what else goes through it.
bool are_far(const ConvGeometry& g) {
  return g.out_channels * g.products() * static_cast<int64_t>(sizeof(float)) > level2_bytes() / 4;
}

double weight_cost(const ConvGeometry& g) { return are_far(g) ? kFarWeightProducts : kNearWeightProducts; }

// What a part of so many rows costs of single channels, and of the product behind them if there is one, in products.
double cost_of_rows(const NhwcConv& node, const NhwcConvPlan& plan, int64_t rows, int64_t columns) {
  const ConvGeometry& g = plan.single;
  const int64_t filters = node.by_channel() ? 0 : plan.geometry.out_channels;
  const auto pixels = static_cast<double>(round_up(rows * columns, kNhwcTilePixels));
  const auto single = static_cast<double>(rows * round_up(columns, kNhwcTilePixels) * g.kernel[1] * g.kernel[2]);
  const auto read =
      static_cast<double>(((rows - 1) * g.strides[1] + g.kernel[1]) * ((columns - 1) * g.strides[2] + g.kernel[2]));
  const int64_t runs = node.nhwc_output ? 0 : filters * (columns == g.out[2] ? 1 : rows);
  const double of_filters = (pixels + weight_cost(plan.geometry)) * static_cast<double>(filters);
  const double of_channels = kNhwcSingleProducts * single + kNhwcElementProducts * read;
  return (of_filters + of_channels) * static_cast<double>(g.in_channels) + kNhwcRunProducts * static_cast<double>(runs) +
         kNhwcUnitProducts;
}

// Rows that so many of single channels read, if none is outside of the image.
int64_t rows_read(const ConvGeometry& single, int64_t rows) {
  return std::min((rows - 1) * single.strides[1] + (single.kernel[1] - 1) * single.dilations[1] + 1, single.in[1]);
}

// Whole rows, as many as have what is made for them in the level 2 cache.  The more they are the fewer are made twice.
void divide_expanded(const NhwcConv& node, NhwcConvPlan* plan) {
  const ConvGeometry& g = plan->single;
  const int64_t row = std::max<int64_t>(g.in[2] * g.in_channels, 1);
  const int64_t row_behind = g.out[2] * g.in_channels;
  const int64_t most = level2_bytes() / (kWideShare * static_cast<int64_t>(sizeof(float)));
  const double each = static_cast<double>(plan->expansion.in_channels) + kResultProducts;
  plan->columns_at_once = g.out[2];
  double least = -1.0;
  for (int64_t rows = 1; rows <= g.out[1]; ++rows) {
    const int64_t read = rows_read(g, rows);
    if (rows > 1 && (read > most / row || rows > most / row_behind)) break;
    const int64_t units = divide_up(g.out[1], rows) * g.batch;
    const double cost = (static_cast<double>(read * row) * each + cost_of_rows(node, *plan, rows, g.out[2])) *
                        static_cast<double>(units) * imbalance(units);
    if (least >= 0.0 && cost >= least) continue;
    least = cost;
    plan->rows_at_once = rows;
  }
  plan->wide_pixels = rows_read(g, plan->rows_at_once) * g.in[2];
}

// A part of some rows whose pixels stay in the caches; by what is computed, and read beside it.
void divide_pair(const NhwcConv& node, NhwcConvPlan* plan) {
  const ConvGeometry& g = plan->single;
  const int64_t widest = std::max(g.in_channels, plan->geometry.out_channels);
  const int64_t share = level2_bytes() / (kPairShare * static_cast<int64_t>(sizeof(float)));
  const int64_t floats = std::max(share, 2 * kNhwcUnitResults);
  const int64_t most = std::max(floats / widest, 2 * kNhwcTilePixels);
  double least = -1.0;
  for (int64_t width = kNhwcTilePixels; width < g.out[2] + kNhwcTilePixels && width <= most; width += kNhwcTilePixels) {
    const int64_t columns = std::min(width, g.out[2]);
    for (int64_t rows = 1; rows <= g.out[1] && rows * columns <= most; ++rows) {
      const int64_t units = divide_up(g.out[1], rows) * divide_up(g.out[2], columns) * g.batch;
      const double cost = cost_of_rows(node, *plan, rows, columns) * static_cast<double>(units) * imbalance(units);
      if (least >= 0.0 && cost >= least) continue;
      least = cost;
      plan->rows_at_once = rows;
      plan->columns_at_once = columns;
    }
  }
}

// A pair, or single channels for which something is made.
void divide_rows(const NhwcConv& node, NhwcConvPlan* plan, bool* straight) {
  const ConvGeometry& g = plan->single;
  plan->images = g.batch;
  plan->pixels = plan->out_pixels;
  plan->filters_at_once = plan->geometry.out_channels;
  node.has_expansion ? divide_expanded(node, plan) : divide_pair(node, plan);
  plan->tile_columns = plan->columns_at_once;
  // Pixels follow one another in the output.
  *straight = *straight && plan->columns_at_once == g.out[2];
  plan->pixel_units = divide_up(g.out[1], plan->rows_at_once) * divide_up(g.out[2], plan->columns_at_once);
  plan->pixels_at_once = plan->rows_at_once * plan->columns_at_once;
}

// What a pixel costs with so many filters, in filters: few vectors of them do not use the registers so well.
double cost_of_filters(int64_t filters) {
  const int64_t blocks = divide_up(filters, static_cast<int64_t>(kNhwcBlock));
  const double vectors = blocks == 1 ? kOneBlock : blocks == 2 ? kTwoBlocks : static_cast<double>(blocks);
  return vectors * static_cast<double>(kNhwcBlock);
}

// How many runs of results a unit has, each of which the epilogue begins anew.
int64_t runs_of_unit(const NhwcConv& node, int64_t pixels, int64_t all_pixels, int64_t filters, int64_t all_filters) {
  if (node.nhwc_output) return filters == all_filters ? 0 : pixels;
  return pixels == all_pixels ? 0 : filters;
}

// By what is computed, with few pixels in the last tile where few are left, and what weights and input cost on their way from
// the level 2 cache, or from farther away, in products.
void divide_filters(const NhwcConv& node, NhwcConvPlan* plan, bool* straight) {
  const ConvGeometry& g = plan->geometry;
  plan->images = node.nhwc_output ? 1 : g.batch;
  plan->pixels = node.nhwc_output ? g.batch * plan->out_pixels : plan->out_pixels;
  const double per_weight = weight_cost(g);
  const int64_t most = std::max(kNhwcUnitResults / g.out_channels, kNhwcManyPixels);
  // All rows of a column at least.
  plan->by_columns =
      plan->by_columns && plan->images * g.batch == 1 && !*straight && g.out[1] <= most / kNhwcTilePixels;
  const int64_t step = plan->by_columns ? g.out[1] : kNhwcTilePixels;
  constexpr auto block = static_cast<int64_t>(kNhwcBlock);
  double least = -1.0;
  for (int64_t parts = 1; parts <= std::min(divide_up(g.out_channels, block), kNhwcFilterParts); ++parts) {
    const int64_t filters = parts == 1 ? g.out_channels : round_up(divide_up(g.out_channels, parts), block);
    const int64_t filter_units = divide_up(g.out_channels, filters);
    for (int64_t pixels = step; pixels < plan->pixels + step && pixels <= most; pixels += step) {
      const int64_t at_once = std::min(pixels, plan->pixels);
      const int64_t units = divide_up(plan->pixels, at_once) * plan->images * filter_units;
      const double sums = static_cast<double>(round_up(at_once, kNhwcLeastTile)) * cost_of_filters(filters);
      const double read = per_weight * static_cast<double>(filters) + kNearWeightProducts * static_cast<double>(at_once);
      const double spilt = at_once * filters > kNhwcUnitResults ? kSpiltUnit : 1.0;
      const auto runs = static_cast<double>(runs_of_unit(node, at_once, plan->pixels, filters, g.out_channels));
      const double unit =
          (sums * spilt + read) * static_cast<double>(g.products()) + kNhwcRunProducts * runs + kNhwcUnitProducts;
      const double cost = unit * static_cast<double>(units) * imbalance(units);
      if (least >= 0.0 && cost >= least) continue;
      least = cost;
      plan->pixels_at_once = at_once;
      plan->filters_at_once = filters;
    }
  }
  if (plan->by_columns) {
    plan->rows_at_once = g.out[1];
    plan->columns_at_once = plan->pixels_at_once / g.out[1];
  }
  plan->pixel_units = divide_up(plan->pixels, plan->pixels_at_once);
  plan->filter_units = divide_up(g.out_channels, plan->filters_at_once);
  // What is written behind a pixel's filters has to be the same thread's to write.
  if (plan->filter_units > 1 && g.out_channels % static_cast<int64_t>(kMaxFloats) != 0) *straight = false;
}

// Whole rows, whose results stay in the level 2 cache.
void divide_planes(NhwcConvPlan* plan) {
  const ConvGeometry& g = plan->geometry;
  plan->images = g.batch;
  plan->pixels = plan->out_pixels;
  plan->by_columns = false;
  plan->columns_at_once = g.out[2];
  plan->filters_at_once = g.out_channels;
  const auto row = static_cast<double>(g.out[2] * g.out_channels) * (static_cast<double>(g.products()) + kResultProducts);
  double least = -1.0;
  for (int64_t rows = 1; rows <= g.out[1]; ++rows) {
    if (rows > 1 && rows > kNhwcRowResults / (g.out[2] * g.out_channels)) break;
    const int64_t units = divide_up(g.out[1], rows) * g.batch;
    const double cost =
        (row * static_cast<double>(rows) + kNhwcUnitProducts) * static_cast<double>(units) * imbalance(units);
    if (least >= 0.0 && cost >= least) continue;
    least = cost;
    plan->rows_at_once = rows;
  }
  plan->pixel_units = divide_up(g.out[1], plan->rows_at_once);
  plan->pixels_at_once = plan->rows_at_once * g.out[2];
}

// What a pixel of the result costs, in products.
double products_of_pixel(const NhwcConv& node, const NhwcShapes& shapes) {
  const auto single = [](const ConvGeometry& g) {
    const double passed = static_cast<double>(g.in[1] * g.in[2]) / static_cast<double>(g.out[1] * g.out[2]) + 1.0;
    return static_cast<double>(g.in_channels) *
           (kNhwcSingleProducts * static_cast<double>(g.products()) + kNhwcElementProducts * passed);
  };
  const ConvGeometry& g = shapes.geometry;
  const ConvGeometry& before = shapes.expansion;
  const double passed = static_cast<double>(before.out[1] * before.out[2]) / static_cast<double>(g.out[1] * g.out[2]);
  const double made = node.has_expansion ? static_cast<double>(before.out_channels * before.in_channels) * passed : 0.0;
  if (node.by_channel()) return single(g) + made;
  const double products = static_cast<double>(g.out_channels) * (static_cast<double>(g.products()) + kResultProducts);
  return products + (node.has_depthwise ? single(shapes.depthwise) : 0.0) + made;
}

}  // namespace

void divide_work(const NhwcConv& node, const NhwcShapes& shapes, NhwcConvPlan* plan, bool* straight) {
  const ConvGeometry& g = plan->geometry;
  // Results with the channels first are written in whole rows, and of a single row columns are what follows one another.
  plan->by_columns = node.nhwc_output && g.out[1] > 1 && g.out[2] / kWideImage >= g.out[1];
  if (plan->taps == Taps::Planes) {
    divide_planes(plan);
  } else if (node.has_depthwise || node.has_expansion) {
    divide_rows(node, plan, straight);
  } else if (node.by_channel()) {
    divide_channels(node, plan);
  } else {
    divide_filters(node, plan, straight);
  }
  double products = products_of_pixel(node, shapes) * static_cast<double>(g.batch * plan->out_pixels);
  // A product of few rows waits for its weights more than it computes, and two threads fetch them sooner than one.
  if (are_far(g)) products += kFarWeightProducts * static_cast<double>(g.out_channels * g.products());
  plan->alone = products < kAloneProducts;
}

}  // namespace onnxfuse
