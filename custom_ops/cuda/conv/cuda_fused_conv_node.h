// A fused convolution on ONNX Runtime's CUDA provider.
#ifndef ONNXFUSE_CUDA_FUSED_CONV_NODE_H_
#define ONNXFUSE_CUDA_FUSED_CONV_NODE_H_

#include <memory>
#include <string>

#include "cuda/conv/cuda_conv_launch.h"
#include "cuda/conv/cuda_conv_recipe.h"
#include "cuda/launch/cuda_node.h"
#include "nodes/conv/fused_conv_node.h"
#include "ort/session_node.h"
#include "plan/plan_cache.h"

namespace onnxfuse {

// Launches the kernels of the node's attributes on ORT's stream.  Where they cannot be used, the CPU computes in plain
// loops on copies of the tensors, and a warning says so once.  Functions throw Error or OrtFailure.
class CudaFusedConvNode : public FusedConvNode {
 public:
  explicit CudaFusedConvNode(const SessionNode& definition);

  void compute(SessionRun& run);

 private:
  void read_kernels(const AttributeSource& attributes);
  void launch_or_compute(SessionRun& run);
  PlanInUse<cuda::ConvPlan> find_plan(const PlanKey& key);
  void compute_copies(SessionRun& run, const Kernels& kernels, const NodeInputs& inputs,
                      cuda::CUstream stream, const std::string& warning);

  SessionWarning warning_;
  cuda::NodeDevice device_;
  cuda::ConvRecipe recipe_;
  PlanCache<cuda::ConvPlan> plans_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_CUDA_FUSED_CONV_NODE_H_
