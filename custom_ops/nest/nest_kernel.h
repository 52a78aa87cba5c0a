// A Program that reduces, as it runs on the CPU: its plans, and the memory of its intermediate values.
#ifndef ONNXFUSE_NEST_KERNEL_H_
#define ONNXFUSE_NEST_KERNEL_H_

#include "nest/nest_plan.h"
#include "nest/simplify_nest.h"
#include "plan/plan_cache.h"
#include "program/program.h"
#include "runtime/host.h"
#include "runtime/program_kernel.h"

namespace onnxfuse {

class NestKernel {
 public:
  explicit NestKernel(const Program& program) : program_(with_reciprocals(program)) {}

  const Program& program() const { return program_; }

  // As ProgramKernel::compute.
  void compute(const Host& host, const PlanKey& key, const void** inputs, void** outputs,
               const OutputMemory& output_memory);

 private:
  Program program_;
  PlanCache<NestPlan> plans_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_NEST_KERNEL_H_
