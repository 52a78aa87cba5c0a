#include "nodes/conv/conv_cpu.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "figures/conv.h"
#include "figures/convolution.h"
#include "kernels/kernels.h"
#include "platform/cache_lines.h"
#include "platform/caches.h"
#include "platform/integers.h"

namespace onnxfuse {
namespace {

// Results of small images that are computed before the epilogue reads them.
constexpr int64_t kCollected = 4096;

// The ways to compute a convolution, the first of which that suits it is taken.  Of the others no code is touched.
struct Implementation {
  ConvWay way;
  bool (*suits)(const ConvGeometry& geometry);
  // Sets how many strips there are, too.
  void (*add)(ConvCpuPlan* plan);
};

constexpr Implementation kImplementations[] = {
    {ConvWay::Rows, [](const ConvGeometry& g) { return g.by_channel() && ConvRows::suits(g, kernels().floats); },
     [](ConvCpuPlan* plan) {
       plan->rows = std::make_unique<const ConvRows>(plan->geometry);
       plan->strip_count = plan->rows->strips();
     }},
    {ConvWay::Lanes, [](const ConvGeometry& g) { return g.by_channel() && ConvLanes::suits(g, kernels().floats); },
     [](ConvCpuPlan* plan) {
       plan->lanes = std::make_unique<const ConvLanes>(plan->geometry, kernels().floats);
       plan->strip_count = plan->lanes->strips();
     }},
    {ConvWay::Strips, [](const ConvGeometry&) { return true; },
     [](ConvCpuPlan* plan) {
       plan->strips = std::make_unique<const ConvStrips>(plan->geometry, kernels().floats, kernels().filters);
       plan->strip_count = plan->strips->count();
     }},
};

}  // namespace

ConvCpuPlan::ConvCpuPlan(const PlanKey& node_key, const ConvGeometry& conv, DType conv_type, ConvEpilogue conv_epilogue)
    : key(node_key),
      geometry(conv),
      type(conv_type),
      epilogue(std::move(conv_epilogue)),
      channel_size(conv_elements(conv.out)) {
  const Implementation& chosen = *std::find_if(std::begin(kImplementations), std::end(kImplementations),
                                               [&](const Implementation& one) { return one.suits(conv); });
  way = chosen.way;
  chosen.add(this);
  const DType result = epilogue.plan == nullptr ? type : output_type(epilogue.program, 0);
  const int64_t results = geometry.batch * geometry.out_channels * channel_size;
  fetches = storage_size(result) == sizeof(float) && results > level2_bytes() / static_cast<int64_t>(sizeof(float));
  divide_work();
  lay_out_memory();
}

void ConvCpuPlan::divide_work() {
  auto per_result = static_cast<double>(geometry.products() + kResultProducts);
  if (geometry.by_channel() && channel_size > 0) {
    const double passed = 1.0 + static_cast<double>(conv_elements(geometry.in)) / static_cast<double>(channel_size);
    per_result = kPlainSingleProducts * static_cast<double>(geometry.products()) + kPlainElementProducts * passed;
  }
  const double all = static_cast<double>(geometry.batch * geometry.out_channels) * static_cast<double>(channel_size);
  alone = all * per_result < kAloneProducts;
  const int64_t filters = geometry.filters();
  const double products = static_cast<double>(divide_up(channel_size, strip_count) * filters) * per_result;
  const int64_t worthwhile = std::clamp<int64_t>(static_cast<int64_t>(kHandoverProducts / products), 1,
                                                 divide_up(geometry.group, std::min(kPlainUnits, geometry.group)));
  groups_at_once = way == ConvWay::Lanes ? lanes->lanes() : worthwhile;
  filters_at_once = filters;
  const int64_t undivided = geometry.batch * strip_count * geometry.group;
  if (way == ConvWay::Strips && undivided < kPlainUnits / 2 && groups_at_once == 1) {
    const int64_t unit_filters = std::max(kPlainUnitFilters, kernels().filters / 2);
    const auto worth = static_cast<int64_t>(std::min(products / kSplitProducts, static_cast<double>(kPlainUnits)));
    const int64_t parts = std::clamp<int64_t>(std::min(worth, kPlainUnits / undivided), 1,
                                              std::max<int64_t>(filters / unit_filters, 1));
    const int64_t block = std::min<int64_t>(strips->filters_at_once(), 8);
    filters_at_once = round_up(divide_up(filters, parts), block);
  }
  group_units = divide_up(geometry.group, groups_at_once);
  filter_units = divide_up(filters, filters_at_once);
  units = geometry.batch * group_units * strip_count * filter_units;
}

void ConvCpuPlan::lay_out_memory() {
  // Adds memory for so many elements, each of so many bytes, and returns where it begins.
  const auto add = [this](size_t count, size_t bytes) {
    const size_t begin = memory.bytes;
    memory.bytes += round_up(count * bytes, kCacheLine);
    return begin;
  };
  size_t results = 0;
  if (way == ConvWay::Rows) {
    results = rows->result_elements();
  } else if (way == ConvWay::Lanes) {
    add(lanes->memory_elements(), sizeof(float));
    results = lanes->result_elements();
  } else {
    collects = strips->is_one_run();
    const int64_t unit = groups_at_once * filters_at_once;
    capacity = std::max(strips->filters_at_once(), collects ? std::min(kCollected / channel_size, unit) : 0);
    add(strips->input_elements(), sizeof(float));
    const int64_t pitch = std::max(strips->results_pitch(), strips->part_size());
    results = static_cast<size_t>((capacity + strips->filters_at_once()) * pitch) + 2 * kMaxFloats;
  }
  memory.results = add(results, sizeof(float));
  if (type != DType::f32) memory.rounded = add(results, sizeof(uint16_t));
  if (way == ConvWay::Strips) {
    memory.scratch = add(strips->scratch_elements(), sizeof(float));
    memory.planes = add(strips->plane_count(), sizeof(ConvStrips::Plane));
    memory.parts = add(strips->part_count(), sizeof(ConvStrips::Part));
  }
  memory.operands = add(epilogue.program.input_count, sizeof(const void*));
}

ConvGeometry image_of_product(const ConvGeometry& product) {
  ConvGeometry image;
  image.batch = 1;
  image.in_channels = product.in_channels;
  image.out_channels = product.batch * conv_elements(product.out);
  image.in[kMaxSpatialRank - 1] = image.out[kMaxSpatialRank - 1] = product.out_channels;
  image.output = product.output;
  return image;
}

std::shared_ptr<const ConvCpuPlan> make_conv_cpu_plan(const ConvNode& node, DType type, const Program* prologue,
                                                      const Program& epilogue, const PlanKey& key,
                                                      const ConvShapes& shapes) {
  int64_t count = 0;
  const Shape& result = shapes.geometry.output;
  if (!element_count(result, &count) || count == 0) return nullptr;
  std::vector<Shape> of_epilogue = epilogue_inputs(node, key.shapes, result);
  if (shapes.geometry.channels_last) {
    ConvEpilogue apart;
    apart.source = &epilogue;
    apart.program = epilogue;
    auto plan = std::make_shared<ConvCpuPlan>(key, image_of_product(shapes.geometry), type, std::move(apart));
    plan->epilogue_key.shapes = std::move(of_epilogue);
    if (prologue != nullptr) plan->prologue_key.shapes = prologue_inputs(node, key.shapes);
    return plan;
  }
  auto plan = std::make_shared<ConvCpuPlan>(key, shapes.geometry, type, make_conv_epilogue(type, epilogue, of_epilogue, 1));
  if (plan->epilogue.plan == nullptr) plan->epilogue_key.shapes = std::move(of_epilogue);
  plan->numbers.add(epilogue, key.shapes, 2 + node.prologue_operands());
  if (prologue != nullptr) plan->numbers.add(*prologue, key.shapes, 2);
  // Channels by themselves are read from X itself.
  if (prologue != nullptr && type == DType::f32 && plan->way == ConvWay::Strips && plan->strips->is_product()) {
    plan->prologue_plan = make_plan_of_parts(*prologue, prologue_inputs(node, key.shapes));
    if (plan->prologue_plan != nullptr) plan->prologue = prologue;
  }
  if (prologue != nullptr && plan->prologue == nullptr) plan->prologue_key.shapes = prologue_inputs(node, key.shapes);
  return plan;
}

}  // namespace onnxfuse
