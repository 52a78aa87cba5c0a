#include "nodes/nhwc_conv/nhwc_conv_plan.h"

#include <algorithm>
#include <utility>

#include "convolution/conv_axis.h"
#include "figures/convolution.h"
#include "figures/nhwc_conv.h"
#include "kernels/kernels.h"
#include "nodes/nhwc_conv/nhwc_conv_units.h"
#include "platform/cache_lines.h"
#include "platform/integers.h"

namespace onnxfuse {
namespace {

// Channels of which several pixels are read as one segment.
constexpr int64_t kFewChannels = 16;

// How results of a Program could be handed on.
struct Ways {
  bool straight = false;
  bool tiles = false;

  Route best() const { return straight ? Route::Straight : tiles ? Route::Tiles : Route::Memory; }
};

struct Routes {
  Ways epilogue;
  Ways prologue;
  Ways expanded;
};

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
  return plane_columns(g) <= kNhwcRowResults / (g.in_channels * g.kernel[1]);
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

Taps find_taps(const NhwcConv& node, const ConvGeometry& g) {
  if (reads_planes(node, g)) return Taps::Planes;
  if (!node.by_channel() && is_product(g)) return Taps::Own;
  if (g.group > 1 || g.kernel[2] == 1 || g.dilations[2] > 1) return Taps::Each;
  if (needs_no_padding(g)) return Taps::Joined;
  return g.in_channels < kFewChannels ? Taps::Padded : Taps::Each;
}

void decide_what_is_read(const NhwcConv& node, NhwcConvPlan* plan) {
  const ConvGeometry& g = plan->geometry;
  plan->taps = find_taps(node, g);
  if (plan->taps == Taps::Planes) return find_offsets_in_planes(plan);
  const bool joined = plan->taps == Taps::Joined || plan->taps == Taps::Padded;
  plan->copies = !node.nhwc[0] || plan->taps == Taps::Padded;
  plan->rows = g.in[1];
  plan->columns = g.in[2];
  plan->pad_top = g.pads[1];
  plan->pad_left = g.pads[2];
  plan->reach = (g.kernel[2] - 1) * g.dilations[2];
  if (plan->taps == Taps::Padded) {
    plan->rows = (g.out[1] - 1) * g.strides[1] + (g.kernel[1] - 1) * g.dilations[1] + 1;
    plan->columns = (g.out[2] - 1) * g.strides[2] + g.kernel[2];
    plan->pad_top = 0;
    plan->pad_left = 0;
  }
  plan->length = (joined ? g.kernel[2] : 1) * g.channels();
  plan->segments = g.kernel[1] * (joined ? 1 : g.kernel[2]);
  if (node.by_channel()) return;
  plan->zero_count = plan->taps == Taps::Each ? g.in_channels : 0;
  // Those that are too large for the type lie outside of every image, and are not used.
  const auto number = [](int64_t n) { return static_cast<uint64_t>(n); };
  for (int64_t h = 0; h < g.kernel[1]; ++h) {
    for (int64_t w = 0; w < (joined ? 1 : g.kernel[2]); ++w) {
      const uint64_t pixels = number(h * g.dilations[1]) * number(plan->columns) + number(w * g.dilations[2]);
      plan->offsets.push_back(static_cast<ptrdiff_t>(pixels * number(g.in_channels)));
    }
  }
}

// Whether a Program does no more to its first input than to keep it within bounds.
bool only_bounds(const ConvEpilogue& epilogue) {
  const Program& program = epilogue.program;
  if (epilogue.plan == nullptr || program.outputs.size() != 1) return false;
  return program.outputs[0] == 0 || only_bounds_tiles(program, epilogue.plan->stages[0]);
}

// Sums within bounds need no epilogue to get to the output.  Others, of whole vectors of filters, go through it tile by tile.
Routes find_routes(const NhwcConv& node, const NhwcConvPlan& plan) {
  Routes routes;
  constexpr auto vector = static_cast<int64_t>(kMaxFloats);
  const auto runs_on_tiles = [](const ConvEpilogue& program, bool tensors) {
    return program.plan != nullptr && is_chain_of_tiles(program.program, program.plan->stages[0], tensors);
  };
  if (node.has_depthwise) {
    routes.prologue.straight = only_bounds(plan.prologue);
    // What the prologue makes of a unit is not laid out as tensors are.
    routes.prologue.tiles = plan.single.in_channels >= vector && runs_on_tiles(plan.prologue, false);
  }
  if (node.has_expansion) {
    routes.expanded.straight = only_bounds(plan.expanded);
    routes.expanded.tiles = plan.single.in_channels % vector == 0 && runs_on_tiles(plan.expanded, false);
  }
  const int64_t channels = plan.geometry.out_channels;
  const bool whole = node.by_channel() ? channels >= vector : channels % vector == 0;
  if (!node.nhwc_output) return routes;
  // Behind a pixel's filters no more than the next one's is written.
  routes.epilogue.straight = channels >= vector && only_bounds(plan.epilogue);
  routes.epilogue.tiles = whole && runs_on_tiles(plan.epilogue, true);
  return routes;
}

// Where tiles are small, or few, what each costs is more than its results cost on their way through memory.
void spare_small_tiles(const NhwcConv& node, const NhwcConvPlan& plan, Routes* routes) {
  // Tiles of single channels are as wide as rows let them be.
  const bool narrow = (node.by_channel() || node.has_depthwise) && plan.tile_columns < kNhwcTilePixels;
  const bool few = plan.pixels_at_once <= static_cast<int64_t>(kFewNhwcPixels);
  if (narrow) routes->prologue.tiles = false;
  if (few || (narrow && node.by_channel())) routes->epilogue.tiles = false;
}

// Room for the results of a unit, as far as tiles do not hand them on.
int64_t kept_results(const NhwcConv& node, const NhwcConvPlan& plan, int64_t pixels) {
  const bool hands_on = plan.epilogue_route != Route::Memory;
  if (node.by_channel()) return hands_on ? 0 : pixels * plan.filters_at_once;
  const int64_t sums = hands_on ? std::min(pixels, static_cast<int64_t>(kFewNhwcPixels)) : pixels;
  const bool keeps = node.has_depthwise && plan.prologue_route == Route::Memory;
  const int64_t before = keeps ? pixels * plan.geometry.in_channels : 0;
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
  plan->segments_at = add(node.by_channel() || plan->taps == Taps::Planes ? 0 : plan->segments * pixels, sizeof(const float*));
  const ConvGeometry& g = plan->geometry;
  plan->plane_rows = add(g.in_channels * g.kernel[1] * plan->plane_columns, sizeof(float));
  plan->zeros = add(plan->zero_count, sizeof(float));
  const auto wide_pixels = static_cast<int64_t>(whole_nhwc_pixels(static_cast<size_t>(plan->wide_pixels)));
  const auto add_wide = [&](int64_t count) {
    return add(count == 0 ? 0 : count * plan->single.in_channels + static_cast<int64_t>(kMaxFloats), sizeof(float));
  };
  plan->wide = add_wide(wide_pixels);
  const bool expands = plan->expanded_route != Route::Memory;
  plan->wide_sums = add_wide(expands ? std::min(wide_pixels, static_cast<int64_t>(kFewNhwcPixels)) : wide_pixels);
  plan->wide_segments = add(wide_pixels, sizeof(const float*));
  const size_t operands =
      std::max({node.prologue.input_count, node.epilogue.input_count, node.expanded.input_count});
  plan->operands = add(static_cast<int64_t>(operands), sizeof(const void*));
}

}  // namespace

bool make_nhwc_conv_plan(const NhwcConv& node, const PlanKey& key, NhwcConvPlan* plan, std::string* error) {
  NhwcShapes shapes;
  return resolve_nhwc_conv(node, key.shapes, &shapes, error) && plan_nhwc_conv(node, shapes, key, plan, error);
}

bool plan_nhwc_conv(const NhwcConv& node, const NhwcShapes& shapes, const PlanKey& key, NhwcConvPlan* plan,
                    std::string* error) {
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
  const int axis = node.nhwc_output ? plan->output.rank - 1 : 1;
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
    if (plan->taps == Taps::Own && !plan->copies) plan->prologue.plan = make_plan_of_parts(node.prologue, shapes.prologue);
    if (plan->prologue.plan == nullptr) {
      if (!node.parts.empty()) return fail("the prologue computes values of several shapes", error);
      plan->whole_prologue = make_plan(node.prologue, {shapes.prologue}, error);
      if (plan->whole_prologue == nullptr) return false;
    }
  }
  const size_t first = node.first_operand();
  plan->numbers.add(node.prologue, key.shapes, first);
  plan->numbers.add(node.epilogue, key.shapes, first + node.conv.prologue_operands());
  plan->numbers.add(node.expanded, key.shapes, node.expanded_operands());
  Routes routes = find_routes(node, *plan);
  divide_work(node, shapes, plan, &routes.epilogue.straight);
  spare_small_tiles(node, *plan, &routes);
  plan->epilogue_route = routes.epilogue.best();
  plan->prologue_route = routes.prologue.best();
  plan->expanded_route = routes.expanded.best();
  lay_out_memory(node, plan);
  return true;
}

}  // namespace onnxfuse
