// Launching a fused convolution's kernels: what depends on shapes is worked out once for each set of them.
#ifndef ONNXFUSE_CUDA_CONV_LAUNCH_H_
#define ONNXFUSE_CUDA_CONV_LAUNCH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "convolution/conv_node.h"
#include "cuda/conv/cuda_conv_recipe.h"
#include "cuda/driver/cuda_driver.h"
#include "cuda/driver/cuda_kernels.h"
#include "cuda/launch/cuda_overlap.h"
#include "plan/plan.h"

namespace onnxfuse::cuda {

// A kernel of the recipe that takes these shapes.
struct ConvCandidate {
  size_t kernel = 0;                      // in the recipe
  std::vector<uintptr_t> misaligned;      // for X, W, the operands and the outputs: the bits that must be 0
  std::vector<unsigned char> parameters;  // the pointers and the number of splits are filled in by the launch
  int64_t blocks = 1;                     // for one split
};

struct ConvPlan {
  PlanKey key;
  Shape output;                           // of every output
  int64_t count = 0;                      // elements of it; if 0 nothing is launched
  std::vector<Extent> extents;            // of the inputs, then of the outputs, if there are elements
  std::vector<ConvCandidate> candidates;  // in the recipe's order; the last takes any addresses
};

// Null if the shapes do not fit; then `error` says why.
std::shared_ptr<const ConvPlan> make_conv_plan(const ConvNode& node, const ConvRecipe& recipe, const PlanKey& key,
                                               std::string* error);

// The first candidate whose demands on alignment the tensors meet: X, W, the operands and the outputs.
const ConvCandidate& choose(const ConvPlan& plan, const std::vector<CUdeviceptr>& addresses);

// The parts that the sum is cut into, so that a small result occupies the device.
int64_t conv_splits(const ConvKernel& kernel, int64_t blocks, int64_t multiprocessors);

// The launch of one run.
class ConvLaunch {
 public:
  // `plan` has elements.
  ConvLaunch(const ConvRecipe& recipe, const ConvPlan& plan, const ContextKernels& kernels,
             std::vector<CUdeviceptr> addresses);

  // Bytes of device memory, aligned to 16, that the kernels need until they have run.
  size_t workspace_bytes() const;

  // Launches on `stream`; waits for nothing.  Throws DriverError.
  void operator()(const Driver& driver, CUdeviceptr workspace, CUstream stream) const;

 private:
  const ConvPlan& plan_;
  const ContextKernels& kernels_;
  const std::vector<CUdeviceptr> addresses_;
  const ConvCandidate& candidate_;
  const ConvKernel& kernel_;
  const int64_t splits_;
};

}  // namespace onnxfuse::cuda

#endif  // ONNXFUSE_CUDA_CONV_LAUNCH_H_
