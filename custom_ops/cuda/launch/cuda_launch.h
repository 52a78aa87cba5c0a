// Launching a fused node's kernel: what depends on shapes is worked out once for each set of them.
#ifndef ONNXFUSE_CUDA_LAUNCH_H_
#define ONNXFUSE_CUDA_LAUNCH_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuda/driver/cuda_driver.h"
#include "cuda/driver/cuda_kernels.h"
#include "cuda/launch/cuda_overlap.h"
#include "cuda/launch/cuda_recipe.h"
#include "plan/plan.h"
#include "program/program.h"
#include "program/program_shapes.h"

namespace onnxfuse::cuda {

// A kernel of the recipe that takes these shapes.
struct LaunchCandidate {
  size_t kernel = 0;                        // in the recipe
  std::vector<uintptr_t> misaligned;        // for each operand: the bits of its address that must be 0
  std::vector<unsigned char> parameters;    // the pointers are filled in by the launch
  int64_t blocks = 1;                       // enough for each thread to handle one vector, or one for each tile
};

struct LaunchPlan {
  PlanKey key;
  std::vector<Shape> output_shapes;
  int64_t elements = 0;                      // of the iteration space; if 0 nothing is launched
  bool writes_without_elements = false;      // an output has elements though the space has none
  std::vector<Extent> extents;               // of the operands, if there are elements
  std::vector<CUdeviceptr> offsets;          // likewise: bytes from a tensor's begin to what is read of it
  std::vector<LaunchCandidate> candidates;   // in the recipe's order; the last needs no alignment
};

// `place` is where the only output lies in its tensor, if that has other parts.  Null if the shapes do not fit; then `error`
// says why.
std::shared_ptr<const LaunchPlan> make_launch_plan(const Program& program, const Recipe& recipe, const PlanKey& key,
                                                   std::string* error, const OutputPart* place = nullptr);

// The first candidate whose demands on alignment the operands meet, of which these are the first elements' addresses.
const LaunchCandidate& choose(const LaunchPlan& plan, const std::vector<CUdeviceptr>& operands);

// Launches on `stream` one of the recipe's kernels, of which the first is number `first` of the functions; `operands` are
// the addresses of their first elements.  Waits for nothing and takes no memory of the device, so that a CUDA graph can
// capture it.  Throws DriverError.
void launch_part(const Driver& driver, const Recipe& recipe, size_t first, const ContextKernels& kernels,
                 const LaunchPlan& plan, const std::vector<CUdeviceptr>& operands, CUstream stream);

}  // namespace onnxfuse::cuda

#endif  // ONNXFUSE_CUDA_LAUNCH_H_
