// Denormal numbers as zeros, where a processor takes some hundred cycles for each.
#ifndef ONNXFUSE_DENORMALS_H_
#define ONNXFUSE_DENORMALS_H_

#if defined(__x86_64__)
#include <xmmintrin.h>
#elif defined(__aarch64__)
#include <cstdint>
#endif

namespace onnxfuse {

// As long as it lives, denormal numbers count as zeros in this thread, as operands and as results.  It is for what sums up
// products: an activation may leave them, as SiLU does below -87, each of which would slow down all that are summed up with
// it, and no sum shows them.  What promises the bits of ONNX Runtime's nodes runs without it, and so does, if not `wanted`, what
// computes with denormal constants: of x + 1e-38 a logarithm is taken.
class DenormalsAsZeros {
 public:
  DenormalsAsZeros(const DenormalsAsZeros&) = delete;
  DenormalsAsZeros& operator=(const DenormalsAsZeros&) = delete;
#if defined(__x86_64__)
  explicit DenormalsAsZeros(bool wanted = true) : before_(_mm_getcsr()) {
    if (wanted) _mm_setcsr(before_ | kFlushToZero | kDenormalsAreZero);
  }
  ~DenormalsAsZeros() { _mm_setcsr(before_); }

 private:
  static constexpr unsigned kFlushToZero = 1u << 15;
  static constexpr unsigned kDenormalsAreZero = 1u << 6;
  const unsigned before_;
#elif defined(__aarch64__)
  explicit DenormalsAsZeros(bool wanted = true) : before_(control()) {
    if (wanted) control(before_ | kFlushToZero);
  }
  ~DenormalsAsZeros() { control(before_); }

 private:
  static constexpr uint64_t kFlushToZero = uint64_t{1} << 24;  // operands too
  static uint64_t control() {
    uint64_t word;
    __asm__ volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void control(uint64_t word) { __asm__ volatile("msr fpcr, %0" : : "r"(word) : "memory"); }
  const uint64_t before_;
#else
  explicit DenormalsAsZeros(bool = true) {}
#endif
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_DENORMALS_H_
