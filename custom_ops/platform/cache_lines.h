// The lines of memory that caches hold.
#ifndef ONNXFUSE_CACHE_LINES_H_
#define ONNXFUSE_CACHE_LINES_H_

#include <cstddef>
#include <cstdint>

namespace onnxfuse {

constexpr size_t kCacheLine = 64;  // bytes

// The first byte of a line in `memory`, at most kCacheLine - 1 bytes further.
inline char* aligned(char* memory) {
  return memory + (kCacheLine - reinterpret_cast<uintptr_t>(memory) % kCacheLine) % kCacheLine;
}

}  // namespace onnxfuse

#endif  // ONNXFUSE_CACHE_LINES_H_
