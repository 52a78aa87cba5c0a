// The choice of the instruction set.
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "kernels/kernels.h"
#include "platform/forks.h"

namespace onnxfuse {

#if defined(__x86_64__)
namespace baseline { extern const KernelTable kTable; }
namespace avx2 { extern const KernelTable kTable; }
namespace avx512 { extern const KernelTable kTable; }

namespace {

// What the processor has and the system saves for a thread.
struct Features {
  bool avx2;    // with FMA and F16C
  bool avx512;  // F, BW, DQ and VL, and all of avx2
};

// Asked of the processor: for __builtin_cpu_supports the compiler adds code that runs whenever the library is loaded, and
// Clang before 17 does not know f16c.
Features find_features() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kFirst = bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C;
  constexpr unsigned kAvx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & kFirst) != kFirst) return {};
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (ebx & bit_AVX2) == 0) return {};
  constexpr unsigned kYmmState = 0x06;  // of XMM and YMM registers
  constexpr unsigned kZmmState = 0xe6;  // and of ZMM and mask registers
  unsigned state = 0, high = 0;
  __asm__("xgetbv" : "=a"(state), "=d"(high) : "c"(0));
  const bool avx2 = (state & kYmmState) == kYmmState;
  return {avx2, avx2 && (state & kZmmState) == kZmmState && (ebx & kAvx512) == kAvx512};
}

const KernelTable& choose() {
  const char* wish = std::getenv("ONNXFUSE_ISA");
  const auto allowed = [wish](const char* name) { return wish == nullptr || std::strcmp(wish, name) == 0; };
  const Features features = find_features();
  if (features.avx512 && allowed("avx512")) return avx512::kTable;
  if (features.avx2 && (allowed("avx2") || allowed("avx512"))) return avx2::kTable;
  return baseline::kTable;
}

}  // namespace
#elif defined(__aarch64__)
namespace neon { extern const KernelTable kTable; }

namespace {
const KernelTable& choose() { return neon::kTable; }
}  // namespace
#else
namespace baseline { extern const KernelTable kTable; }

namespace {
const KernelTable& choose() { return baseline::kTable; }
}  // namespace
#endif

const KernelTable& kernels() {
  static Once<const KernelTable*> table;
  return *table.get([] { return &choose(); });
}

}  // namespace onnxfuse
