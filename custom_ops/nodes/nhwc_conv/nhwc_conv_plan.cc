#include "nodes/nhwc_conv/nhwc_conv_plan.h"

#include <algorithm>
#include <utility>

#include "convolution/conv_axis.h"
#include "kernels/kernels.h"
#include "plan/cost.h"
#include "platform/cache_lines.h"
#include "platform/caches.h"
#include "platform/integers.h"

namespace onnxfuse {
namespace {

// Results of a unit that stay in the caches next to the processor until the epilogue has read them.
constexpr int64_t kUnitResults = 12288;
// The same of single channels, whose results stay in the level 2 cache, and the part of that cache where those of a pair may
// stay.
constexpr int64_t kRowResults = 65536;
constexpr int64_t kPairShare = 8;
// The part of it for what is made for single channels.
constexpr int64_t kWideShare = 2;
// What single channels that are computed at once read of a kernel's rows.
constexpr int64_t kReadElements = 6144;
constexpr int64_t kLeastColumns = 16;
constexpr double kReadRow = 0.3;
constexpr double kUnitRows = 0.2;
// Pixels of a unit are whole tiles of most sizes (nhwc_kernels.inc).
constexpr int64_t kTilePixels = 8;
constexpr int64_t kManyPixels = 192;
constexpr int64_t kMostParts = 8;
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
// Channels of which several pixels are read as one segment.
constexpr int64_t kFewChannels = 16;

bool fail(std::string problem, std::string* error) {
  *error = std::move(problem);
  return false;
}

// Whether each pixel is computed from the one at its own place.
bool is_product(const ConvGeometry& g) {
  for (size_t d = 0; d < kMaxSpatialRank; ++d) {
    if (g.kernel[d] != 1 || g.pads[d] != 0 || g.in[d] != g.out[d] || (g.strides[d] != 1 && g.in[d] != 1)) return false;
  }
  return true;
}

// Whether every tap of every pixel meets the input.
bool needs_no_padding(const ConvGeometry& g) {
  for (size_t d = 0; d < kMaxSpatialRank; ++d) {
    if (g.pads[d] != 0 || (g.out[d] - 1) * g.strides[d] + (g.kernel[d] - 1) * g.dilations[d] >= g.in[d]) return false;
  }
  return true;
}

// Columns of the copies of rows.
int64_t plane_columns(const ConvGeometry& g) {
  return (g.out[2] - 1) * g.strides[2] + (g.kernel[2] - 1) * g.dilations[2] + 1;
}

bool reads_planes(const NhwcConv& node, const ConvGeometry& g) {
  if (node.nhwc[0] || g.group > 1 || node.conv.has_prologue || g.in_channels >= kFewChannels) return false;
  const int64_t stride = g.strides[2];
  const bool strides = stride == 1 || stride == 2 || stride == 4;
  if (!strides || g.out[2] < static_cast<int64_t>(kPlanePixels)) return false;
  if (g.products() > static_cast<int64_t>(kMostPlaneProducts)) return false;
  return plane_columns(g) <= kRowResults / (g.in_channels * g.kernel[1]);
}

void find_offsets_in_planes(NhwcConvPlan* plan) {
  const ConvGeometry& g = plan->geometry;
  const int64_t pitch = plan->plane_columns = plane_columns(g);
  for (int64_t h = 0; h < g.kernel[1]; ++h) {
    for (int64_t w = 0; w < g.kernel[2]; ++w) {
      for (int64_t c = 0; c < g.in_channels; ++c) {
        plan->offsets.push_back((c * g.kernel[1] + h) * pitch + w * g.dilations[2]);
      }
    }
  }
}

void decide_what_is_read(const NhwcConv& node, NhwcConvPlan* plan) {
  const ConvGeometry& g = plan->geometry;
  plan->planes = reads_planes(node, g);
  if (plan->planes) return find_offsets_in_planes(plan);
  plan->product = !node.by_channel() && is_product(g);
  const bool joinable = g.group == 1 && g.kernel[2] > 1 && g.dilations[2] == 1;
  plan->padded = joinable && g.in_channels < kFewChannels && !needs_no_padding(g);
  plan->joins_taps = plan->padded || (joinable && needs_no_padding(g));
  plan->copies = !node.nhwc[0] || plan->padded;
  plan->rows = g.in[1];
  plan->columns = g.in[2];
  plan->pad_top = g.pads[1];
  plan->pad_left = g.pads[2];
  plan->reach = (g.kernel[2] - 1) * g.dilations[2];
  if (plan->padded) {
    plan->rows = (g.out[1] - 1) * g.strides[1] + (g.kernel[1] - 1) * g.dilations[1] + 1;
    plan->columns = (g.out[2] - 1) * g.strides[2] + g.kernel[2];
    plan->pad_top = 0;
    plan->pad_left = 0;
  }
  plan->length = (plan->joins_taps ? g.kernel[2] : 1) * g.channels();
  plan->segments = g.kernel[1] * (plan->joins_taps ? 1 : g.kernel[2]);
  if (node.by_channel()) return;
  plan->zero_count = plan->product || plan->joins_taps ? 0 : g.in_channels;
  // Those that are too large for the type lie outside of every image, and are not used.
  const auto number = [](int64_t n) { return static_cast<uint64_t>(n); };
  for (int64_t h = 0; h < g.kernel[1]; ++h) {
    for (int64_t w = 0; w < (plan->joins_taps ? 1 : g.kernel[2]); ++w) {
      const uint64_t pixels = number(h * g.dilations[1]) * number(plan->columns) + number(w * g.dilations[2]);
      plan->offsets.push_back(static_cast<int64_t>(pixels * number(g.in_channels)));
    }
  }
}

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
void divide_rows(const NhwcConv& node, NhwcConvPlan* plan) {
  const ConvGeometry& g = plan->single;
  plan->images = g.batch;
  plan->pixels = plan->out_pixels;
  plan->filters_at_once = plan->geometry.out_channels;
  node.has_expansion ? divide_expanded(node, plan) : divide_pair(node, plan);
  plan->tile_columns = plan->columns_at_once;
  plan->straight = plan->straight && plan->columns_at_once == g.out[2];  // pixels follow one another in the output
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
void divide_filters(const NhwcConv& node, NhwcConvPlan* plan) {
  const ConvGeometry& g = plan->geometry;
  plan->images = node.nhwc_output ? 1 : g.batch;
  plan->pixels = node.nhwc_output ? g.batch * plan->out_pixels : plan->out_pixels;
  const double per_weight = weight_cost(g);
  const int64_t most = std::max(kUnitResults / g.out_channels, kManyPixels);
  // All rows of a column at least.
  plan->by_columns = plan->by_columns && plan->images * g.batch == 1 && !plan->straight && g.out[1] <= most / kTilePixels;
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
  if (plan->filter_units > 1 && g.out_channels % static_cast<int64_t>(kMaxFloats) != 0) plan->straight = false;
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

// What a pixel of the result costs.
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

// Whether a Program does no more to its first input than to keep it within bounds.
bool only_bounds(const ConvEpilogue& epilogue) {
  const Program& program = epilogue.program;
  if (epilogue.plan == nullptr || program.outputs.size() != 1) return false;
  return program.outputs[0] == 0 || only_bounds_tiles(program, epilogue.plan->stages[0]);
}

// Sums within bounds need no epilogue to get to the output.  Others, of whole vectors of filters, go through it tile by tile.
void decide_what_is_written(const NhwcConv& node, NhwcConvPlan* plan) {
  constexpr auto vector = static_cast<int64_t>(kMaxFloats);
  const auto runs_on_tiles = [](const ConvEpilogue& program, bool tensors) {
    return program.plan != nullptr && is_chain_of_tiles(program.program, program.plan->stages[0], tensors);
  };
  if (node.has_depthwise) {
    plan->prepares_straight = only_bounds(plan->prologue);
    // What the prologue makes of a unit is not laid out as tensors are.
    plan->prepares_tiles = plan->single.in_channels >= vector && runs_on_tiles(plan->prologue, false);
  }
  if (node.has_expansion) {
    plan->expands_straight = only_bounds(plan->expanded);
    plan->expands_tiles = plan->single.in_channels % vector == 0 && runs_on_tiles(plan->expanded, false);
  }
  const int64_t channels = plan->geometry.out_channels;
  const bool whole = node.by_channel() ? channels >= vector : channels % vector == 0;
  if (!node.nhwc_output) return;
  // Behind a pixel's filters no more than the next one's is written.
  plan->straight = channels >= vector && only_bounds(plan->epilogue);
  plan->finishes_tiles = whole && runs_on_tiles(plan->epilogue, true);
}

// Where tiles are small, or few, what each costs is more than its results cost on their way through memory.
void spare_small_tiles(const NhwcConv& node, NhwcConvPlan* plan) {
  // Tiles of single channels are as wide as rows let them be.
  const bool narrow = (node.by_channel() || node.has_depthwise) && plan->tile_columns < kTilePixels;
  const bool few = plan->pixels_at_once <= static_cast<int64_t>(kFewNhwcPixels);
  if (narrow) plan->prepares_tiles = false;
  if (few || (narrow && node.by_channel())) plan->finishes_tiles = false;
}

// Room for the results of a unit, as far as tiles do not hand them on.
int64_t kept_results(const NhwcConv& node, const NhwcConvPlan& plan, int64_t pixels) {
  const bool hands_on = plan.straight || plan.finishes_tiles;
  if (node.by_channel()) return hands_on ? 0 : pixels * plan.filters_at_once;
  const int64_t sums = hands_on ? std::min(pixels, static_cast<int64_t>(kFewNhwcPixels)) : pixels;
  const bool prepares = plan.prepares_straight || plan.prepares_tiles;
  const int64_t before = node.has_depthwise && !prepares ? pixels * plan.geometry.in_channels : 0;
  return std::max(sums * plan.filters_at_once, before);
}

void lay_out_memory(const NhwcConv& node, NhwcConvPlan* plan) {
  // Adds memory for so many elements, each of so many bytes, and returns where it begins.
  const auto add = [plan](int64_t count, size_t bytes) {
    const size_t begin = plan->bytes;
    plan->bytes += round_up(static_cast<size_t>(count) * bytes, kCacheLine);
    return begin;
  };
  // The last unit may have fewer, and those rounded up are no more.
  const auto pixels = static_cast<int64_t>(whole_nhwc_pixels(static_cast<size_t>(plan->pixels_at_once)));
  const int64_t results = kept_results(node, *plan, pixels) + static_cast<int64_t>(kMaxFloats);
  plan->results = add(results, sizeof(float));
  plan->turned = add(node.nhwc_output ? 0 : results, sizeof(float));
  const int64_t read = plan->pixels_at_once * plan->geometry.in_channels;
  plan->joined = add(node.parts.empty() ? 0 : read, sizeof(float));
  plan->read = add(plan->prologue.plan == nullptr ? 0 : read, sizeof(float));
  plan->segments_at = add(node.by_channel() || plan->planes ? 0 : plan->segments * pixels, sizeof(const float*));
  const ConvGeometry& g = plan->geometry;
  plan->plane_rows = add(g.in_channels * g.kernel[1] * plan->plane_columns, sizeof(float));
  plan->zeros = add(plan->zero_count, sizeof(float));
  const auto wide_pixels = static_cast<int64_t>(whole_nhwc_pixels(static_cast<size_t>(plan->wide_pixels)));
  const auto add_wide = [&](int64_t count) {
    return add(count == 0 ? 0 : count * plan->single.in_channels + static_cast<int64_t>(kMaxFloats), sizeof(float));
  };
  plan->wide = add_wide(wide_pixels);
  const bool expands = plan->expands_straight || plan->expands_tiles;
  plan->wide_sums = add_wide(expands ? std::min(wide_pixels, static_cast<int64_t>(kFewNhwcPixels)) : wide_pixels);
  plan->wide_segments = add(wide_pixels, sizeof(const float*));
  const size_t operands =
      std::max({node.prologue.input_count, node.epilogue.input_count, node.expanded.input_count});
  plan->operands = add(static_cast<int64_t>(operands), sizeof(const void*));
}

}  // namespace

bool make_nhwc_conv_plan(const NhwcConv& node, const PlanKey& key, NhwcConvPlan* plan, std::string* error) {
  NhwcShapes shapes;
  if (!resolve_nhwc_conv(node, key.shapes, &shapes, error)) return false;
  plan->key = key;
  plan->geometry = shapes.geometry;
  plan->output = shapes.epilogue[0];
  const ConvGeometry& g = plan->geometry;
  int64_t count = 0;
  if (!element_count(plan->output, &count) || count == 0) return true;
  if (!element_count(key.shapes[0], &count)) {
    return fail("input 0 of shape " + to_string(key.shapes[0]) + " has too many elements", error);
  }
  plan->in_pixels = g.in[1] * g.in[2];
  plan->out_pixels = g.out[1] * g.out[2];
  decide_what_is_read(node, plan);
  if (plan->copies && !element_count({4, {g.batch, plan->rows, plan->columns, g.in_channels}}, &count)) {
    return fail("input 0 of shape " + to_string(key.shapes[0]) + " has too many elements with its padding", error);
  }
  const int axis = node.nhwc_output ? node.rank() - 1 : 1;
  plan->epilogue = make_conv_epilogue(DType::f32, node.epilogue, shapes.epilogue, axis);
  if (plan->epilogue.plan == nullptr) {
    plan->whole_epilogue = make_plan(node.epilogue, {shapes.epilogue}, error);
    if (plan->whole_epilogue == nullptr) return false;
  }
  plan->single = node.has_depthwise ? shapes.depthwise : g;
  if (node.has_expansion) {
    plan->expansion = shapes.expansion;
    if (!element_count(shapes.expanded[0], &count)) {
      return fail("the expansion of shape " + to_string(shapes.expanded[0]) + " has too many elements", error);
    }
    plan->expanded = make_conv_epilogue(DType::f32, node.expanded, shapes.expanded, node.rank() - 1);
    if (plan->expanded.plan == nullptr) return fail("the expansion computes values of several shapes", error);
  }
  if (node.has_depthwise) {
    plan->prologue = make_conv_epilogue(DType::f32, node.prologue, shapes.prologue, node.rank() - 1);
    if (plan->prologue.plan == nullptr) return fail("the prologue computes values of several shapes", error);
  } else if (node.conv.has_prologue) {
    plan->prologue.program = node.prologue;
    if (plan->product && !plan->copies) plan->prologue.plan = make_plan_of_parts(node.prologue, shapes.prologue);
    if (plan->prologue.plan == nullptr) {
      if (!node.parts.empty()) return fail("the prologue computes values of several shapes", error);
      plan->whole_prologue = make_plan(node.prologue, {shapes.prologue}, error);
      if (plan->whole_prologue == nullptr) return false;
    }
  }
  decide_what_is_written(node, plan);
  // Results with the channels first are written in whole rows, and of a single row columns are what follows one another.
  plan->by_columns = node.nhwc_output && g.out[1] > 1 && g.out[2] / kWide >= g.out[1];
  if (plan->planes) {
    divide_planes(plan);
  } else if (node.has_depthwise || node.has_expansion) {
    divide_rows(node, plan);
  } else if (node.by_channel()) {
    divide_channels(node, plan);
  } else {
    divide_filters(node, plan);
  }
  spare_small_tiles(node, plan);
  plan->alone = products_of_pixel(node, shapes) * static_cast<double>(g.batch * plan->out_pixels) < kAlone;
  lay_out_memory(node, plan);
  return true;
}

}  // namespace onnxfuse
