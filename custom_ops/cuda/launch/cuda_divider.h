// Division by numbers that a launch knows, as kernels do it.
#ifndef ONNXFUSE_CUDA_DIVIDER_H_
#define ONNXFUSE_CUDA_DIVIDER_H_

#include <cstdint>

namespace onnxfuse::cuda {

// x / divisor = (umulhi(x, multiplier) + x) >> shift for x < 2^31: Granlund & Montgomery, "Division by Invariant
// Integers using Multiplication", 1994.
struct Divider32 {
  uint32_t divisor;
  uint32_t multiplier;
  uint32_t shift;

  static Divider32 of(int64_t number) {
    const auto divisor = static_cast<uint32_t>(number);
    uint32_t shift = 0;
    while ((uint64_t{1} << shift) < divisor) ++shift;
    return {divisor, static_cast<uint32_t>((((uint64_t{1} << shift) - divisor) << 32) / divisor + 1), shift};
  }
};

struct Divider64 {
  uint64_t divisor;

  static Divider64 of(int64_t number) { return {static_cast<uint64_t>(number)}; }
};

}  // namespace onnxfuse::cuda

#endif  // ONNXFUSE_CUDA_DIVIDER_H_
