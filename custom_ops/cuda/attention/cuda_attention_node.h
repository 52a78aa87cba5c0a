// A FusedAttention node on ONNX Runtime's CUDA provider.
#ifndef ONNXFUSE_CUDA_ATTENTION_NODE_H_
#define ONNXFUSE_CUDA_ATTENTION_NODE_H_

#include <string>

#include "cuda/attention/cuda_attention_launch.h"
#include "cuda/attention/cuda_attention_recipe.h"
#include "cuda/launch/cuda_node.h"
#include "nodes/attention/attention_node.h"
#include "ort/session_node.h"
#include "plan/plan_cache.h"

namespace onnxfuse {

// Launches the kernels of the node's attributes on ORT's stream.  Where they cannot be used, the CPU's kernel runs on
// copies of the tensors, and a warning says so once.  Functions throw Error or OrtFailure.
class CudaAttentionNode : public AttentionNode {
 public:
  explicit CudaAttentionNode(const SessionNode& definition);

  void compute(SessionRun& run);

 private:
  void read_kernels(const AttributeSource& attributes);
  void launch_or_compute(SessionRun& run);
  PlanInUse<cuda::AttentionCudaPlan> find_cuda_plan(const PlanKey& key);
  void compute_copies(SessionRun& run, const NodeInputs& inputs, cuda::CUstream stream,
                      const std::string& warning);

  SessionWarning warning_;
  cuda::NodeDevice device_;
  cuda::AttentionRecipe recipe_;
  PlanCache<cuda::AttentionCudaPlan> cuda_plans_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_CUDA_ATTENTION_NODE_H_
