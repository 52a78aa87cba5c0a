// A fused node that reduces, on ONNX Runtime's CUDA provider.
#ifndef ONNXFUSE_CUDA_FUSED_REDUCTION_H_
#define ONNXFUSE_CUDA_FUSED_REDUCTION_H_

#include <memory>
#include <string>

#include "cuda/launch/cuda_node.h"
#include "cuda/nest/cuda_nest_launch.h"
#include "cuda/nest/cuda_nest_recipe.h"
#include "nest/nest_kernel.h"
#include "nodes/reduction/reduction_node.h"
#include "ort/session_node.h"
#include "plan/plan_cache.h"
#include "runtime/node_program.h"

namespace onnxfuse {

// Launches the kernels of the node's attributes on ORT's stream.  Where they cannot be used, the CPU's kernel runs on
// copies of the tensors, and a warning says so once.  Functions throw Error or OrtFailure.
class CudaFusedReduction : public Node {
 public:
  static constexpr const char* kOperator = ReductionNode::kOperator;

  explicit CudaFusedReduction(const SessionNode& definition);

  static void infer(const OrtApi& api, OrtShapeInferContext* context) { ReductionNode::infer(api, context); }

  void compute(SessionRun& run);

 private:
  void read_kernels(const AttributeSource& attributes);
  void launch_or_compute(SessionRun& run);
  PlanInUse<cuda::NestPlan> find_plan(const PlanKey& key);
  void compute_on_host(SessionRun& run, NestKernel* kernel, const NodeInputs& inputs, cuda::CUstream stream,
                       const std::string& warning);

  NodeProgramOf<NestKernel> program_;
  SessionWarning warning_;
  cuda::NodeDevice device_;
  cuda::NestRecipe recipe_;
  PlanCache<cuda::NestPlan> plans_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_CUDA_FUSED_REDUCTION_H_
