// Launching a kernel that reduces: what depends on shapes is worked out once for each set of them.
#ifndef ONNXFUSE_CUDA_NEST_LAUNCH_H_
#define ONNXFUSE_CUDA_NEST_LAUNCH_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuda/driver/cuda_driver.h"
#include "cuda/driver/cuda_kernels.h"
#include "cuda/launch/cuda_overlap.h"
#include "cuda/launch/cuda_splits.h"
#include "cuda/nest/cuda_nest_recipe.h"
#include "plan/plan.h"
#include "program/program.h"

namespace onnxfuse::cuda {

// A kernel of the recipe that takes these shapes.
struct NestCandidate {
  size_t kernel = 0;                      // in the recipe
  std::vector<uintptr_t> misaligned;      // for each tensor: the bits of its address that must be 0
  std::vector<unsigned char> parameters;  // the pointers, splits and chunk are filled in by the launch
  size_t splits_at = 0;                   // the place of splits among the parameters
  int64_t tiles = 1;                      // blocks for all rows
};

struct NestPlan {
  PlanKey key;
  std::vector<Shape> output_shapes;
  int64_t rows = 0;                       // if 0 nothing is launched
  int64_t length = 0;
  bool writes_without_rows = false;       // an output has elements though there are no rows
  size_t reductions = 0;                  // of the program
  std::vector<Extent> extents;            // of the tensors, if there are rows
  std::vector<NestCandidate> candidates;  // in the recipe's order; the last takes any addresses
};

// Null if the shapes do not fit; then `error` says why.
std::shared_ptr<const NestPlan> make_nest_plan(const Program& program, const NestRecipe& recipe, const PlanKey& key,
                                               std::string* error);

// How the blocks of a kernel in steps share rows.
Splits nest_splits(const NestKernel& kernel, int64_t tiles, int64_t length, int64_t multiprocessors);

// The launch of one run.
class NestLaunch {
 public:
  // `plan` has rows; `addresses` are those of its inputs, then of its outputs.
  NestLaunch(const NestRecipe& recipe, const NestPlan& plan, const ContextKernels& kernels,
             const std::vector<CUdeviceptr>& addresses);

  // Bytes of device memory, aligned to 8, that the kernels need until they have run.
  size_t workspace_bytes() const;

  // Launches on `stream`; waits for nothing.  Throws DriverError.
  void operator()(const Driver& driver, CUdeviceptr workspace, CUstream stream) const;

 private:
  void choose(const NestRecipe& recipe);

  const NestPlan& plan_;
  const ContextKernels& kernels_;
  const std::vector<CUdeviceptr>& addresses_;
  const NestCandidate* candidate_ = nullptr;
  const NestKernel* kernel_ = nullptr;
  Splits splits_;
};

}  // namespace onnxfuse::cuda

#endif  // ONNXFUSE_CUDA_NEST_LAUNCH_H_
