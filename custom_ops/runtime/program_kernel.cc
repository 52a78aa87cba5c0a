#include "runtime/program_kernel.h"

#include <cstring>
#include <string>
#include <utility>

#include "figures/programs.h"
#include "platform/error.h"
#include "runtime/executor.h"

namespace onnxfuse {

ProgramKernel::ProgramKernel(Program program) : program_(std::move(program)) {}

void ProgramKernel::compute(const Host& host, const PlanKey& key, const void** inputs, void** outputs,
                            const OutputMemory& output_memory) {
  PlanInUse<Plan> plan = find_plan(key);
  const size_t tensors = plan->output_shapes.size();
  const auto type = [&](size_t t) { return output_type(program_, first_output(program_, t)); };
  for (size_t t = 0; t < tensors; ++t) outputs[t] = output_memory(t, plan->output_shapes[t], type(t));
  const OverlappingOutputs overlapping(host, outputs, tensors, [&](size_t t) {
    int64_t count = 0;
    element_count(plan->output_shapes[t], &count);
    return static_cast<size_t>(count) * storage_size(type(t));
  });
  void* parts[kMaxOutputs];
  find_outputs(program_, *plan, outputs, parts);
  plan = resolve_aliasing(std::move(plan), inputs, parts);
  const auto copies = copy_shared_inputs(host, *plan, inputs, parts);
  const RunMemory scratch(host, plan->scratch_bytes);
  run_plan(program_, *plan, {inputs, parts, static_cast<char*>(scratch.data())}, host);
  overlapping.copy();
}

PlanInUse<Plan> ProgramKernel::find_plan(const PlanKey& key) {
  auto plan = plans_.find(key);
  return plan ? std::move(plan) : plans_.add(plan_for(key));
}

// The plan for inputs of the other's shapes, found without a copy of these.
PlanInUse<Plan> ProgramKernel::find_plan(const Plan& other, uint64_t aliased, uint64_t deferred) {
  auto plan = plans_in_place_.find_if([&](const Plan& candidate) {
    const PlanKey& key = candidate.key;
    return key.aliased == aliased && key.deferred == deferred && key.shapes == other.key.shapes;
  });
  return plan ? std::move(plan) : plans_in_place_.add(plan_for({other.key.shapes, aliased, deferred}));
}

std::shared_ptr<const Plan> ProgramKernel::plan_for(const PlanKey& key) const {
  std::string error;
  auto plan = make_plan(program_, key, &error);
  if (plan == nullptr) throw Error(error);
  return plan;
}

// Whether tiles can run while output `o` shares the memory of input `i`, element for element: one stage has both, and
// a tile reads its part of the input in place.
bool ProgramKernel::shares_in_place(const Plan& plan, size_t i, const void* input, size_t o, const void* output) const {
  const InputUse& read = plan.inputs[i];
  const OutputUse& written = plan.outputs[o];
  return input == output && read.stages == 1 && read.whole && written.whole && read.stage == written.stage &&
         storage_size(program_.values[i].type) == storage_size(output_type(program_, o));
}

// The plan for outputs that share memory with inputs, as GetMayInplace allows ORT to arrange.
PlanInUse<Plan> ProgramKernel::resolve_aliasing(PlanInUse<Plan> plan, const void* const* inputs,
                                                void* const* outputs) {
  while (true) {
    uint64_t aliased = plan->key.aliased;
    uint64_t deferred = plan->key.deferred;
    for (size_t o = 0; o < program_.outputs.size(); ++o) {
      for (size_t i = 0; i < program_.input_count; ++i) {
        const InputUse& read = plan->inputs[i];
        if (read.stages == 0 || !overlap(inputs[i], read.bytes, outputs[o], plan->outputs[o].bytes)) continue;
        if (!shares_in_place(*plan, i, inputs[i], o, outputs[o])) continue;
        aliased |= uint64_t{1} << o;
        if (plan->outputs[o].first_write < read.last_read) deferred |= uint64_t{1} << o;
      }
    }
    if (aliased == plan->key.aliased && deferred == plan->key.deferred) return plan;
    plan = find_plan(*plan, aliased, deferred);
  }
}

// Where sharing is not element for element, the input is copied first.
std::vector<RunMemory> ProgramKernel::copy_shared_inputs(const Host& host, const Plan& plan, const void** inputs,
                                                         void* const* outputs) const {
  std::vector<RunMemory> copies;
  for (size_t i = 0; i < program_.input_count; ++i) {
    const void* const input = inputs[i];
    const InputUse& read = plan.inputs[i];
    for (size_t o = 0; o < program_.outputs.size(); ++o) {
      if (read.stages == 0 || !overlap(input, read.bytes, outputs[o], plan.outputs[o].bytes)) continue;
      if (shares_in_place(plan, i, input, o, outputs[o])) continue;
      copies.emplace_back(host, read.bytes);
      std::memcpy(copies.back().data(), input, read.bytes);
      inputs[i] = copies.back().data();
      break;
    }
  }
  return copies;
}

}  // namespace onnxfuse
