// Launching all parts of a fused node at once, or one after the other where no kernel computes them all.
#ifndef ONNXFUSE_CUDA_NODE_LAUNCH_H_
#define ONNXFUSE_CUDA_NODE_LAUNCH_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cuda/elementwise/cuda_node_recipe.h"
#include "cuda/launch/cuda_launch.h"

namespace onnxfuse::cuda {

struct NodePlan {
  PlanKey key;
  std::vector<Shape> output_shapes;      // of the tensors
  bool has_elements = false;             // of some part; else nothing is launched
  bool writes_without_elements = false;  // a part's output has elements though its space has none
  std::vector<Extent> extents;           // of the node's operands, if there are elements
  std::vector<std::shared_ptr<const LaunchPlan>> parts;
  std::vector<std::vector<size_t>> operands;  // for each part those of the node
};

// Null if the shapes do not fit; then `error` says why.
std::shared_ptr<const NodePlan> make_node_plan(const Program& program, const NodeRecipe& recipe, const PlanKey& key,
                                               std::string* error);

// Launches on `stream`; `operands` are the tensors, inputs before outputs.  Waits for nothing and takes no memory of the
// device.  Throws DriverError.
void launch(const Driver& driver, const NodeRecipe& recipe, const ContextKernels& kernels, const NodePlan& plan,
            const std::vector<CUdeviceptr>& operands, CUstream stream);

}  // namespace onnxfuse::cuda

#endif  // ONNXFUSE_CUDA_NODE_LAUNCH_H_
