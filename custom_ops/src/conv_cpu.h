// Convolutions with an epilogue on the CPU: a channel's results are still in the caches when the epilogue reads them.
#ifndef ONNXFUSE_CONV_CPU_H_
#define ONNXFUSE_CONV_CPU_H_

#include <memory>
#include <vector>

#include "conv_epilogue.h"
#include "conv_lanes.h"
#include "conv_node.h"
#include "conv_strips.h"
#include "dtype.h"
#include "executor.h"
#include "plan.h"

namespace onnxfuse {

// How a node runs on inputs of certain shapes.
struct ConvCpuPlan {
  // Throws Error if a part of the convolution needs too much memory.
  ConvCpuPlan(const PlanKey& key, const ConvGeometry& geometry, DType type, ConvEpilogue epilogue);

  PlanKey key;  // of the node's inputs
  ConvGeometry geometry;
  DType type;  // of X, W and the result
  ConvStrips strips;
  std::unique_ptr<const ConvLanes> lanes;  // instead of the strips, if it suits
  ConvEpilogue epilogue;
  const Program* prologue = nullptr;  // that strips compute from X as they read it
  std::shared_ptr<const Plan> prologue_plan;
  int64_t groups_at_once;  // in a unit of work for a thread
  int64_t filters_at_once;
};

// The Programs, of which `prologue` may be null, outlive the plan.  Null if the result has no elements.  The plan has no
// epilogue if that computes values of several shapes, and no prologue unless it is cheaper than to compute that first.
std::shared_ptr<const ConvCpuPlan> make_conv_cpu_plan(const ConvNode& node, DType type, const Program* prologue,
                                                      const Program& epilogue, const PlanKey& key,
                                                      const ConvShapes& shapes);

struct ConvTensors {
  const void* x;
  const void* weights;
  std::vector<const void*> prologue;  // its operands after X, and X first
  std::vector<const void*> epilogue;  // its operands after the convolution's result, for which the first stands
  std::vector<void*> outputs;
};

// Runs a plan.  Without an epilogue the one output is the convolution's result.
void run_conv_cpu(const ConvCpuPlan& plan, const ConvTensors& tensors, ParallelFor parallel_for, void* context);

}  // namespace onnxfuse

#endif  // ONNXFUSE_CONV_CPU_H_
