// The part of nhwc_conv_plan.h that runs: Programs on whole tensors, and units on threads.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "kernels/kernels.h"
#include "nodes/nhwc_conv/nhwc_conv_plan.h"
#include "nodes/nhwc_conv/nhwc_conv_worker.h"
#include "nodes/nhwc_conv/nhwc_copies.h"
#include "platform/cache_lines.h"
#include "platform/denormals.h"
#include "platform/integers.h"
#include "runtime/parts.h"
#include "runtime/workspace.h"

namespace onnxfuse {
namespace {

// What a Program that only bounds its first input has its results within; its operands are inputs from `first` on.  If one is no
// number no result is, which is left to the addends.
Bounds take_bounds(const NhwcConvRun& run, const ConvEpilogue& program, size_t first) {
  if (program.program.outputs[0] == 0) return {};
  return bounds_of_tiles(program.program, program.plan->stages[0], run.inputs.data() + first - 1);
}

// The bias of a Program, whose operands are inputs from `first` on, with zeros behind it; or zeros.
Workspace copy_addends(const NhwcConvRun& run, const ConvEpilogue& program, size_t first, int64_t filters,
                       const Bounds& bounds, const float** addends) {
  const int64_t whole = round_up(filters, static_cast<int64_t>(kMaxFloats));
  Workspace memory(static_cast<size_t>(whole) * sizeof(float));
  auto* const to = static_cast<float*>(memory.data());
  *addends = to;
  if (std::isnan(bounds.low) || std::isnan(bounds.high)) {
    std::fill_n(to, whole, std::numeric_limits<float>::quiet_NaN());
    return memory;
  }
  const size_t bias = program.plan == nullptr ? 0 : program.bias;
  if (bias != 0) std::copy_n(static_cast<const float*>(run.inputs[first + bias - 1]), filters, to);
  std::fill(to + (bias != 0 ? filters : 0), to + whole, 0.0f);
  return memory;
}

// A whole tensor of float32, with the scratch of the plan that makes it or makes something of it.
class Whole {
 public:
  Whole(const Host& host, int64_t elements, const Plan& plan)
      : host_(host),
        plan_(plan),
        bytes_(round_up(static_cast<size_t>(elements) * sizeof(float), kCacheLine)),
        memory_(host, bytes_ + plan.scratch_bytes) {}

  void* elements() const { return memory_.data(); }

  // Runs the plan on its first input and the operands.
  void run(const Program& program, const void* first, const std::vector<const void*>& operands,
           void* const* outputs) const {
    std::vector<const void*> inputs{first};
    inputs.insert(inputs.end(), operands.begin(), operands.end());
    run_plan(program, plan_, {inputs.data(), outputs, static_cast<char*>(memory_.data()) + bytes_}, host_);
  }

 private:
  const Host& host_;
  const Plan& plan_;
  const size_t bytes_;
  const RunMemory memory_;
};

}  // namespace

void run_nhwc_conv(const NhwcConv& node, const NhwcConvPlan& plan, const std::vector<const void*>& inputs,
                   const std::vector<void*>& outputs, const Host& host) {
  const ConvGeometry& g = plan.geometry;
  if (plan.bytes == 0) return;  // no elements
  const size_t second = node.first_operand() + node.conv.prologue_operands();
  std::vector<void*> sums;
  NhwcConvRun run{node, plan, inputs, plan.whole_epilogue == nullptr ? outputs : sums};
  run.x = static_cast<const float*>(inputs[0]);
  std::optional<Whole> prepared;
  if (plan.whole_prologue != nullptr) {
    prepared.emplace(host, g.batch * plan.in_pixels * g.in_channels, *plan.whole_prologue);
    void* out = prepared->elements();
    prepared->run(node.prologue, inputs[0], {inputs.begin() + 2, inputs.begin() + static_cast<ptrdiff_t>(second)}, &out);
    run.x = static_cast<const float*>(out);
  }
  std::optional<Whole> results;
  if (plan.whole_epilogue != nullptr) {
    results.emplace(host, g.batch * plan.out_pixels * g.out_channels, *plan.whole_epilogue);
    sums.push_back(results->elements());
  }
  if (plan.epilogue_route == Route::Straight) run.bounds = take_bounds(run, plan.epilogue, second);
  const Workspace addends = copy_addends(run, plan.epilogue, second, g.out_channels, run.bounds, &run.addends);
  run.single_addends = run.addends;
  run.single_weights = static_cast<const float*>(inputs[1]);
  std::optional<Workspace> single_addends;
  if (node.has_depthwise) {
    run.single_weights = static_cast<const float*>(inputs[2]);
    const size_t first = node.first_operand();
    if (plan.prologue_route == Route::Straight) run.single_bounds = take_bounds(run, plan.prologue, first);
    single_addends.emplace(
        copy_addends(run, plan.prologue, first, g.in_channels, run.single_bounds, &run.single_addends));
  }
  std::optional<Workspace> wide_addends;
  if (node.has_expansion) {
    const size_t first = node.expanded_operands();
    if (plan.expanded_route == Route::Straight) run.wide_bounds = take_bounds(run, plan.expanded, first);
    wide_addends.emplace(
        copy_addends(run, plan.expanded, first, g.in_channels, run.wide_bounds, &run.wide_addends));
  }
  const RunMemory copy = copy_input(plan, node.nhwc[0], host, &run.x);
  const int64_t units = plan.images * plan.pixel_units * plan.filter_units;
  const bool flushes = !plan.numbers.any_denormal(inputs.data());
  const auto compute = [&](int64_t unit) {
    const DenormalsAsZeros zeros(flushes);
    NhwcConvWorker(run).compute(unit);
  };
  run_parts(host, units, compute, plan.alone);
  if (plan.whole_epilogue == nullptr) return;
  results->run(node.epilogue, sums[0], {inputs.begin() + static_cast<ptrdiff_t>(second), inputs.end()}, outputs.data());
}

}  // namespace onnxfuse
