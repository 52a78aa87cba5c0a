// A Program as it runs on the CPU: its plans, and the memory of its intermediate values.
#ifndef ONNXFUSE_PROGRAM_KERNEL_H_
#define ONNXFUSE_PROGRAM_KERNEL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "plan/plan.h"
#include "plan/plan_cache.h"
#include "program/program.h"
#include "runtime/host.h"

namespace onnxfuse {

// Where tensor `o`, of the given shape and type, is to be written.
using OutputMemory = std::function<void*(size_t o, const Shape& shape, DType type)>;

class ProgramKernel {
 public:
  explicit ProgramKernel(Program program);

  const Program& program() const { return program_; }

  // Throws Error or OrtFailure.  The inputs and the outputs are memory of the host and may overlap: an input is then
  // another one afterwards.  There is room for as many `outputs` as the Program makes tensors.
  void compute(const Host& host, const PlanKey& key, const void** inputs, void** outputs,
               const OutputMemory& output_memory);

 private:
  PlanInUse<Plan> find_plan(const PlanKey& key);
  PlanInUse<Plan> find_plan(const Plan& other, uint64_t aliased, uint64_t deferred);
  std::shared_ptr<const Plan> plan_for(const PlanKey& key) const;
  bool shares_in_place(const Plan& plan, size_t i, const void* input, size_t o, const void* output) const;
  PlanInUse<Plan> resolve_aliasing(PlanInUse<Plan> plan, const void* const* inputs, void* const* outputs);
  std::vector<RunMemory> copy_shared_inputs(const Host& host, const Plan& plan, const void** inputs,
                                            void* const* outputs) const;

  Program program_;
  PlanCache<Plan> plans_;
  PlanCache<Plan> plans_in_place_;  // for outputs that share memory with inputs
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_PROGRAM_KERNEL_H_
