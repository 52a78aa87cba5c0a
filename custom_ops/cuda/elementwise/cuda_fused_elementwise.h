// A fused node on ONNX Runtime's CUDA provider.
#ifndef ONNXFUSE_CUDA_FUSED_ELEMENTWISE_H_
#define ONNXFUSE_CUDA_FUSED_ELEMENTWISE_H_

#include <memory>
#include <string>

#include "cuda/elementwise/cuda_node_launch.h"
#include "cuda/elementwise/cuda_node_recipe.h"
#include "cuda/launch/cuda_node.h"
#include "nodes/elementwise/fused_node.h"
#include "ort/session_node.h"
#include "plan/plan_cache.h"

namespace onnxfuse {

// Launches the kernels of the node's attributes on ORT's stream.  Where they cannot be used, the CPU's kernel runs on
// copies of the tensors, and a warning says so once.  Functions throw Error or OrtFailure.
class CudaFusedElementwise : public FusedNode {
 public:
  explicit CudaFusedElementwise(const SessionNode& definition);

  void compute(SessionRun& run);

 private:
  void read_kernels(const AttributeSource& attributes);
  void launch_or_compute(SessionRun& run);
  PlanInUse<cuda::NodePlan> find_plan(const PlanKey& key);
  void compute_on_host(SessionRun& run, ProgramKernel* kernel, const NodeInputs& inputs,
                       cuda::CUstream stream, const std::string& warning);

  SessionWarning warning_;
  cuda::NodeDevice device_;
  cuda::NodeRecipe recipe_;
  PlanCache<cuda::NodePlan> plans_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_CUDA_FUSED_ELEMENTWISE_H_
