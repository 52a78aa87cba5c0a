// The choice of the instruction set.
#include <cstdlib>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "kernels.h"

namespace onnxfuse {

#if defined(__x86_64__)
namespace baseline { const KernelTable& table(); }
namespace avx2 { const KernelTable& table(); }
namespace avx512 { const KernelTable& table(); }

namespace {

// Asked of the processor, for Clang before 17 does not know the name.
bool has_f16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

const KernelTable& choose() {
  const char* wish = std::getenv("ONNXFUSE_ISA");
  const auto allowed = [wish](const char* name) { return wish == nullptr || std::strcmp(wish, name) == 0; };
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (has_avx512 && allowed("avx512")) return avx512::table();
  if (has_avx2 && (allowed("avx2") || allowed("avx512"))) return avx2::table();
  return baseline::table();
}

}  // namespace
#elif defined(__aarch64__)
namespace neon { const KernelTable& table(); }

namespace {
const KernelTable& choose() { return neon::table(); }
}  // namespace
#else
namespace baseline { const KernelTable& table(); }

namespace {
const KernelTable& choose() { return baseline::table(); }
}  // namespace
#endif

const KernelTable& kernels() {
  static const KernelTable& table = choose();
  return table;
}

}  // namespace onnxfuse
