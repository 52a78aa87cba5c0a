// Asked of the processor itself, so that the answer does not depend on the system.  Intel's manual (volume 2, CPUID) and AMD's
// (APM volume 3, appendix E) say what the numbers mean.
#include "platform/processor.h"

#include <cstring>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "platform/exports.h"
#include "platform/forks.h"

namespace onnxfuse {

#if defined(__x86_64__)
// For __builtin_cpu_supports the compiler adds code that runs whenever the library is loaded, and Clang before 17 does not know
// f16c.
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
  const bool avx512 = avx2 && (state & kZmmState) == kZmmState && (ebx & kAvx512) == kAvx512;
  constexpr unsigned kAvx512Vnni = 1u << 11, kAvxVnni = 1u << 4;
  bool vnni = avx512 && (ecx & kAvx512Vnni) != 0;
  if (__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0) vnni = vnni || (avx2 && (eax & kAvxVnni) != 0);
  return {avx2, avx512, vnni};
}

namespace {

// Four characters of each register.
template <class... Registers>
std::string characters(Registers... registers) {
  std::string text;
  for (const unsigned value : {registers...}) {
    char four[sizeof value];
    std::memcpy(four, &value, sizeof value);
    text.append(four, sizeof four);
  }
  return text;
}

std::string describe() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  std::string text;
  if (__get_cpuid(0, &eax, &ebx, &ecx, &edx) != 0) text += "vendor: " + characters(ebx, edx, ecx) + "\n";
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0) {
    const unsigned family = (eax >> 8) & 0xf;
    text += "family: " + std::to_string(family == 0xf ? family + ((eax >> 20) & 0xff) : family) + "\n";
  }
  std::string name;
  for (unsigned leaf = 0x80000002; leaf <= 0x80000004; ++leaf) {
    if (__get_cpuid(leaf, &eax, &ebx, &ecx, &edx) != 0) name += characters(eax, ebx, ecx, edx);
  }
  const Features features = find_features();
  text += std::string("features:") + (features.avx2 ? " avx2" : "") + (features.avx512 ? " avx512" : "") +
          (features.vnni ? " vnni" : "") + "\n";
  return text + "name: " + name.c_str() + "\n";  // what follows a null character is no part of the name
}

}  // namespace
#else
Features find_features() { return {}; }

namespace {
std::string describe() { return {}; }
}  // namespace
#endif

}  // namespace onnxfuse

// Lines `NAME: VALUE` of the vendor, the family, the features and the name of a processor of x86-64; of others nothing.  Whoever
// plans what runs here asks (onnxfuse/cpu.py).
extern "C" ONNXFUSE_EXPORT const char* onnxfuse_processor() {
  static onnxfuse::Once<std::string> text;
  return text.get([] { return onnxfuse::describe(); }).c_str();
}
