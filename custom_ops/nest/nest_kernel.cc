#include "nest/nest_kernel.h"

#include <cstring>
#include <vector>

namespace onnxfuse {

void NestKernel::compute(const Host& host, const PlanKey& key, const void** inputs, void** outputs,
                         const OutputMemory& output_memory) {
  const auto plan = plans_.find_or_make(
      key, [&](NestPlan* made, std::string* error) { return make_nest_plan(program_, key, made, error); });
  const size_t count = program_.outputs.size();
  for (size_t o = 0; o < count; ++o) outputs[o] = output_memory(o, plan->output_shapes[o], output_type(program_, o));
  const OverlappingOutputs overlapping(host, outputs, count, [&](size_t o) { return plan->output_bytes[o]; });
  // What a session's bindings have put where an output is, is copied first.
  std::vector<RunMemory> copies;
  for (size_t i = 0; i < program_.input_count; ++i) {
    const size_t bytes = plan->input_bytes[i];
    for (size_t o = 0; o < count; ++o) {
      if (!overlap(inputs[i], bytes, outputs[o], plan->output_bytes[o])) continue;
      copies.emplace_back(host, bytes);
      std::memcpy(copies.back().data(), inputs[i], bytes);
      inputs[i] = copies.back().data();
      break;
    }
  }
  run_nest(*plan, inputs, outputs, host);
  overlapping.copy();
}

}  // namespace onnxfuse
