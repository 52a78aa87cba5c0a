// Launching the kernels of an attention: what depends on shapes is worked out once for each set of them.
#ifndef ONNXFUSE_CUDA_ATTENTION_LAUNCH_H_
#define ONNXFUSE_CUDA_ATTENTION_LAUNCH_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuda/attention/cuda_attention_parameters.h"
#include "cuda/attention/cuda_attention_recipe.h"
#include "cuda/driver/cuda_driver.h"
#include "cuda/driver/cuda_kernels.h"
#include "cuda/launch/cuda_overlap.h"
#include "cuda/launch/cuda_splits.h"
#include "nodes/attention/attention.h"
#include "plan/plan.h"

namespace onnxfuse::cuda {

// A kernel of the recipe that takes these shapes.
struct AttentionCandidate {
  size_t kernel = 0;         // in the recipe
  uintptr_t misaligned = 0;  // the bits that must be 0 of the addresses of Q, K, V and the output
  int64_t blocks = 1;        // for all rows and columns, without splits
};

struct AttentionCudaPlan {
  PlanKey key;
  AttentionLayout layout;
  std::vector<Extent> extents;                 // of the inputs, then of the output, if that has elements
  AttentionParameters parameters{};            // but for pointers and splits
  std::vector<AttentionCandidate> candidates;  // in the recipe's order; the last takes any addresses
};

// Null if the shapes do not fit; then `error` says why.
std::shared_ptr<const AttentionCudaPlan> make_attention_cuda_plan(const Attention& node, const AttentionRecipe& recipe,
                                                                  const PlanKey& key, std::string* error);

// How blocks share the keys of a row.
Splits attention_splits(const AttentionKernel& kernel, int64_t blocks, int64_t keys, int64_t multiprocessors);

// The launch of one run.
class AttentionLaunch {
 public:
  // `plan` has elements; `addresses` are those of the inputs, then of the output.
  AttentionLaunch(const Attention& node, const AttentionRecipe& recipe, const AttentionCudaPlan& plan,
                  const ContextKernels& kernels, const std::vector<CUdeviceptr>& addresses);

  // Bytes of device memory, aligned to 4, that the kernels need until they have run.
  size_t workspace_bytes() const;

  // Launches on `stream`; waits for nothing.  Throws DriverError.
  void operator()(const Driver& driver, CUdeviceptr workspace, CUstream stream) const;

 private:
  const AttentionCudaPlan& plan_;
  const ContextKernels& kernels_;
  const AttentionCandidate* candidate_ = nullptr;
  const AttentionKernel* kernel_ = nullptr;
  Splits splits_;
  AttentionParameters parameters_;
};

}  // namespace onnxfuse::cuda

#endif  // ONNXFUSE_CUDA_ATTENTION_LAUNCH_H_
