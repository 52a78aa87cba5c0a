// A Program that reduces, as it runs on the CPU: its plans, and the memory of its intermediate values.
#ifndef ONNXFUSE_NEST_KERNEL_H_
#define ONNXFUSE_NEST_KERNEL_H_

#include <vector>

#include "nest/nest_plan.h"
#include "nest/simplify_nest.h"
#include "plan/plan_cache.h"
#include "program/program.h"
#include "runtime/host.h"
#include "runtime/program_kernel.h"

namespace onnxfuse {

class NestKernel {
 public:
  explicit NestKernel(const Program& program);

  const Program& program() const { return program_; }

  // As ProgramKernel::compute.
  void compute(const Host& host, const PlanKey& key, const void** inputs, void** outputs,
               const OutputMemory& output_memory);

 private:
  void run(const Host& host, const PlanKey& key, const void** inputs, void** outputs, const OutputMemory& output_memory);

  Program program_;
  Program of_bytes_;            // the same of inputs of which each element has a byte
  std::vector<size_t> packed_;  // the inputs with two elements in a byte, which are taken apart for each run
  Program whole_;               // and with tensors in place of rows that are named, which are gathered for each run
  bool names_rows_;
  PlanCache<NestPlan> plans_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_NEST_KERNEL_H_
