#include "nodes/nhwc_conv/nhwc_conv_units.h"

#include <algorithm>

#include "kernels/kernels.h"
#include "plan/cost.h"
#include "platform/caches.h"
#include "platform/integers.h"

namespace onnxfuse {
namespace {

// The part of the level 2 cache where results of a pair may stay.
constexpr int64_t kPairShare = 8;
constexpr int64_t kManyPixels = 192;
constexpr int64_t kMostParts = 8;
// Results of a unit that stay in the caches next to the processor until the epilogue has read them.
constexpr int64_t kUnitResults = 12288;
// The part of that cache for what is made for single channels.
constexpr int64_t kWideShare = 2;
// What single channels that are computed at once read of a kernel's rows.
constexpr int64_t kReadElements = 6144;
constexpr int64_t kLeastColumns = 16;
constexpr double kReadRow = 0.3;
constexpr double kUnitRows = 0.2;
// What a weight costs on its way from the level 2 cache, and from farther away, in products of it; and a unit.
constexpr double kNearWeight = 3.0;
constexpr double kFarWeight = 12.0;
constexpr double kUnitProducts = 30e3;
// The same for a run of results that does not follow the one before, so that the epilogue stops between them.
constexpr double kRunProducts = 3000.0;
// What a product of single channels costs, and an element that is read for them, in products of all.
constexpr double kSingleProduct = 1.5;
constexpr double kReadElement = 5.0;
// What a result costs besides, in products.
constexpr double kResultProducts = 8.0;
// With fewer products in all the calling thread is done before others have begun.
constexpr double kAlone = 300e3;
// Columns for each row of an image of which threads rather take columns each than rows: so kernels reach less far into what
// another thread has written.
constexpr int64_t kWide = 2;

void divide_channels(const NhwcConv& node, NhwcConvPlan* plan) {
  const ConvGeometry& g = plan->geometry;
  plan->images = g.batch;
  plan->pixels = plan->out_pixels;
  const int64_t fitting = kReadElements / (g.kernel[1] * std::min(kNhwcChannelsAtOnce, g.in_channels)) / g.strides[2];
  int64_t parts = divide_up(g.out[2], std::max(fitting, kLeastColumns));
  if (plan->by_columns && g.out[2] >= 2 * kLeastColumns) parts = round_up(parts, int64_t{2});  // alike for two threads
  plan->tile_columns = divide_up(g.out[2], parts);
  // With the channels first the epilogue runs on each row of each channel by itself, unless rows are whole.
  plan->columns_at_once = node.nhwc_output ? plan->tile_columns : g.out[2];
  const int64_t column_units = divide_up(g.out[2], plan->columns_at_once);
  const int64_t room = std::clamp<int64_t>(kRowResults / (plan->columns_at_once * g.out_channels), 1, g.out[1]);
  double least = 0.0;
  for (int64_t rows = 1; rows <= room; ++rows) {
    // In rows of results: what is read, that of the rows beside them too, and the time of a unit however small.
    const auto extent = static_cast<double>((rows - 1) * g.strides[1] + g.kernel[1]);
    const double unit = static_cast<double>(rows) + kReadRow * extent / static_cast<double>(g.strides[1]) + kUnitRows;
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

// What weights stay in the level 2 cache for the next unit, beside what else goes through it.
double weight_cost(const ConvGeometry& g) {
  const int64_t bytes = g.out_channels * g.products() * static_cast<int64_t>(sizeof(float));
  return bytes > level2_bytes() / 4 ? kFarWeight : kNearWeight;
}

// What a part of so many rows costs of single channels, and of the product behind them if there is one, in products.
double cost_of_rows(const NhwcConv& node, const NhwcConvPlan& plan, int64_t rows, int64_t columns) {
  const ConvGeometry& g = plan.single;
  const int64_t filters = node.by_channel() ? 0 : plan.geometry.out_channels;
  const auto pixels = static_cast<double>(round_up(rows * columns, kTilePixels));
  const auto single = static_cast<double>(rows * round_up(columns, kTilePixels) * g.kernel[1] * g.kernel[2]);
  const auto read =
      static_cast<double>(((rows - 1) * g.strides[1] + g.kernel[1]) * ((columns - 1) * g.strides[2] + g.kernel[2]));
  const int64_t runs = node.nhwc_output ? 0 : filters * (columns == g.out[2] ? 1 : rows);
  const double of_filters = (pixels + weight_cost(plan.geometry)) * static_cast<double>(filters);
  return (of_filters + kSingleProduct * single + kReadElement * read) * static_cast<double>(g.in_channels) +
         kRunProducts * static_cast<double>(runs) + kUnitProducts;
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
  const int64_t floats = std::max(level2_bytes() / (kPairShare * static_cast<int64_t>(sizeof(float))), 2 * kUnitResults);
  const int64_t most = std::max(floats / widest, 2 * kTilePixels);
  double least = -1.0;
  for (int64_t width = kTilePixels; width < g.out[2] + kTilePixels && width <= most; width += kTilePixels) {
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
  const double vectors = blocks == 1 ? 1.25 : blocks == 2 ? 2.1 : static_cast<double>(blocks);
  return vectors * static_cast<double>(kNhwcBlock);
}

// How many runs of results a unit has, each of which the epilogue begins anew.
int64_t runs_of_unit(const NhwcConv& node, int64_t pixels, int64_t all_pixels, int64_t filters, int64_t all_filters) {
  if (node.nhwc_output) return filters == all_filters ? 0 : pixels;
  return pixels == all_pixels ? 0 : filters;
}

// By what is computed, with tiles that begin early, and what weights and input cost on their way from the level 2
// cache, or from farther away, in products.
void divide_filters(const NhwcConv& node, NhwcConvPlan* plan, bool* straight) {
  const ConvGeometry& g = plan->geometry;
  plan->images = node.nhwc_output ? 1 : g.batch;
  plan->pixels = node.nhwc_output ? g.batch * plan->out_pixels : plan->out_pixels;
  const double per_weight = weight_cost(g);
  const int64_t most = std::max(kUnitResults / g.out_channels, kManyPixels);
  // All rows of a column at least.
  plan->by_columns = plan->by_columns && plan->images * g.batch == 1 && !*straight && g.out[1] <= most / kTilePixels;
  const int64_t step = plan->by_columns ? g.out[1] : kTilePixels;
  constexpr auto block = static_cast<int64_t>(kNhwcBlock);
  double least = -1.0;
  for (int64_t parts = 1; parts <= std::min(divide_up(g.out_channels, block), kMostParts); ++parts) {
    const int64_t filters = parts == 1 ? g.out_channels : round_up(divide_up(g.out_channels, parts), block);
    const int64_t filter_units = divide_up(g.out_channels, filters);
    for (int64_t pixels = step; pixels < plan->pixels + step && pixels <= most; pixels += step) {
      const int64_t at_once = std::min(pixels, plan->pixels);
      const int64_t units = divide_up(plan->pixels, at_once) * plan->images * filter_units;
      const double sums = static_cast<double>(round_up(at_once, kTilePixels)) * cost_of_filters(filters);
      const double read = per_weight * static_cast<double>(filters) + kNearWeight * static_cast<double>(at_once);
      const double spilt = at_once * filters > kUnitResults ? 1.03 : 1.0;
      const auto runs = static_cast<double>(runs_of_unit(node, at_once, plan->pixels, filters, g.out_channels));
      const double unit = (sums * spilt + read) * static_cast<double>(g.products()) + kRunProducts * runs + kUnitProducts;
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
    if (rows > 1 && rows > kRowResults / (g.out[2] * g.out_channels)) break;
    const int64_t units = divide_up(g.out[1], rows) * g.batch;
    const double cost =
        (row * static_cast<double>(rows) + kUnitProducts) * static_cast<double>(units) * imbalance(units);
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
           (kSingleProduct * static_cast<double>(g.products()) + kReadElement * passed);
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
  plan->by_columns = node.nhwc_output && g.out[1] > 1 && g.out[2] / kWide >= g.out[1];
  if (plan->taps == Taps::Planes) {
    divide_planes(plan);
  } else if (node.has_depthwise || node.has_expansion) {
    divide_rows(node, plan, straight);
  } else if (node.by_channel()) {
    divide_channels(node, plan);
  } else {
    divide_filters(node, plan, straight);
  }
  plan->alone = products_of_pixel(node, shapes) * static_cast<double>(g.batch * plan->out_pixels) < kAlone;
}

}  // namespace onnxfuse
