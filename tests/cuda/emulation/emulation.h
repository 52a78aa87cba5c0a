// CUDA's execution model on one CPU thread, for the text of a kernel to be compiled as C++17 after this header.
//
// Blocks run one after the other.  So do the threads of a block, unless the text has barriers, warp functions or shared
// memory (ONNXFUSE_EMULATION_FIBERS is 1): then every thread is a fiber that runs until it waits.  Every access through
// the prelude is checked against the operands that the caller registers: bounds, alignment, that every element of an
// output is written once.  What is wrong comes back as a message.
//
// A source is followed by ONNXFUSE_EMULATED_KERNEL(name); for each of its kernels; `onnxfuse_emulate` launches one.

#ifndef ONNXFUSE_EMULATION_H_
#define ONNXFUSE_EMULATION_H_

#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static
#define ONNXFUSE_CHECK(base, first, count, alignment, is_store) \
  emulation::check(base, first, count, alignment, is_store)
#define ONNXFUSE_CHECK_SHARED(first, count, size, alignment) emulation::check_shared(first, count, size, alignment)
#define ONNXFUSE_TRACE_SHARED(address, bytes, is_store) emulation::shared_uses.trace(address, bytes, is_store)

namespace emulation {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// What a kernel did that it must not; the launch ends.
struct Violation {
  std::string message;
};

// ---------------------------------------------------------------------------------------------- operands

// Part of the interface: the caller fills an array of these.
struct Operand {
  const char* name;
  uint64_t address;
  uint64_t bytes;
  uint64_t is_output;  // 2 of what need not be written whole
};

struct Memory {
  Operand operand;
  std::vector<bool> written;  // for each byte of an output
};

inline thread_local std::vector<Memory> memories;

inline std::string elements(const Memory& memory, int64_t first, uint64_t count, uint64_t itemsize) {
  const std::string range = count == 1 ? "element " + std::to_string(first)
                                       : "elements " + std::to_string(first) + " to " + std::to_string(first + count - 1);
  return std::string(memory.operand.name) + ": " + range + " of " + std::to_string(memory.operand.bytes / itemsize);
}

// `base` is within an operand, of which several may be parts of one tensor, and `first` counts from there.
template <class T> void check(const T* base, int64_t first, int64_t count, uint64_t alignment, bool is_store) {
  const auto address = reinterpret_cast<uint64_t>(base);
  std::string problem = std::string("a pointer that is no operand is ") + (is_store ? "written" : "read");
  for (Memory& memory : memories) {
    const Operand& operand = memory.operand;
    const uint64_t before = address - operand.address;
    if ((before != 0 && before >= operand.bytes) || (operand.is_output != 0) != is_store) continue;
    const int64_t begin = first + static_cast<int64_t>(before / sizeof(T));
    if (begin < 0 || begin + count > static_cast<int64_t>(operand.bytes / sizeof(T))) {
      problem = elements(memory, begin, count, sizeof(T)) + (is_store ? " written" : " read");
      continue;
    }
    if ((operand.address + begin * sizeof(T)) % alignment != 0) {
      throw Violation{elements(memory, begin, count, sizeof(T)) + " accessed with alignment " + std::to_string(alignment)};
    }
    if (!is_store) return;
    for (uint64_t byte = begin * sizeof(T); byte < (begin + count) * sizeof(T); ++byte) {
      if (memory.written[byte]) throw Violation{elements(memory, byte / sizeof(T), 1, sizeof(T)) + " written twice"};
      memory.written[byte] = true;
    }
    return;
  }
  throw Violation{problem};
}

inline void check_all_is_written() {
  for (const Memory& memory : memories) {
    if (memory.operand.is_output == 2) continue;
    const auto gap = std::find(memory.written.begin(), memory.written.end(), false);
    if (gap != memory.written.end()) {
      throw Violation{elements(memory, gap - memory.written.begin(), 1, 1) + " bytes never written"};
    }
  }
}

}  // namespace emulation

inline thread_local emulation::Dim3 threadIdx, blockIdx, blockDim, gridDim;

// ---------------------------------------------------------------------------------------------- intrinsic functions

template <class To, class From> To onnxfuse_emulation_bits(From value) {
  static_assert(sizeof(To) == sizeof(From), "");
  To result;
  memcpy(&result, &value, sizeof result);
  return result;
}

inline unsigned __float_as_uint(float x) { return onnxfuse_emulation_bits<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return onnxfuse_emulation_bits<float>(x); }
inline long long __double_as_longlong(double x) { return onnxfuse_emulation_bits<long long>(x); }
inline double __longlong_as_double(long long x) { return onnxfuse_emulation_bits<double>(x); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((uint64_t{a} * b) >> 32); }

#include "fibers.h"
#include "shared_memory.h"
#include "tensor_cores.h"
#include "async_copy.h"

namespace emulation {

// ---------------------------------------------------------------------------------------------- launches

using Launcher = void (*)(void** arguments);

inline std::map<std::string, Launcher>& kernels() {
  static std::map<std::string, Launcher> all;
  return all;
}

// Calls `kernel` with parameters of the types it declares, read from where `arguments` point, as cuLaunchKernel does.
template <auto Kernel, class... Parameters, size_t... Index>
void call(void (*)(Parameters...), void** arguments, std::index_sequence<Index...>) {
  Kernel(*static_cast<std::remove_cv_t<Parameters>*>(arguments[Index])...);
}

template <class... Parameters> constexpr auto indices(void (*)(Parameters...)) {
  return std::index_sequence_for<Parameters...>{};
}

template <auto Kernel> void launch_thread(void** arguments) { call<Kernel>(Kernel, arguments, indices(Kernel)); }

struct Registration {
  Registration(const char* name, Launcher launcher) { kernels()[name] = launcher; }
};

inline void run_block(Launcher launcher, void** arguments) {
#if ONNXFUSE_EMULATION_FIBERS
  shared_uses.clear();
  BlockOfFibers(blockDim.x).run([&] { launcher(arguments); });
#else
  for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) launcher(arguments);
#endif
}

inline thread_local std::string failure;

}  // namespace emulation

#define ONNXFUSE_EMULATED_KERNEL(name) \
  static emulation::Registration emulated_##name(#name, emulation::launch_thread<&onnxfuse::name>)

// Runs a kernel on a grid of `blocks` blocks of `threads` threads.  Null, or what went wrong (until the next launch).
extern "C" __attribute__((visibility("default"))) const char* onnxfuse_emulate(
    const char* kernel, void** arguments, unsigned blocks, unsigned threads, const emulation::Operand* operands,
    uint64_t operand_count) {
  using namespace emulation;
  memories.clear();
  copy_groups.clear();
  for (uint64_t i = 0; i < operand_count; ++i) {
    memories.push_back({operands[i], std::vector<bool>(operands[i].is_output != 0 ? operands[i].bytes : 0)});
  }
  try {
    const auto found = kernels().find(kernel);
    if (found == kernels().end()) throw Violation{std::string("there is no kernel ") + kernel};
    gridDim = {blocks, 1, 1};
    blockDim = {threads, 1, 1};
    threadIdx = {0, 0, 0};
    blockIdx = {0, 0, 0};
    for (; blockIdx.x < blocks; ++blockIdx.x) run_block(found->second, arguments);
    check_all_is_written();
  } catch (const Violation& violation) {
    failure = "block " + std::to_string(blockIdx.x) + " thread " + std::to_string(threadIdx.x) + ": " + violation.message;
    return failure.c_str();
  }
  return nullptr;
}

#endif  // ONNXFUSE_EMULATION_H_
