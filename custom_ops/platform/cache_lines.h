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

// Has the lines of `bytes` from `memory` on brought into the level 2 cache.
inline void fetch_lines(const char* memory, size_t bytes) {
  const char* const end = memory + bytes;
  for (const char* line = memory - reinterpret_cast<uintptr_t>(memory) % kCacheLine; line < end; line += kCacheLine) {
    __builtin_prefetch(line, 0, 2);
  }
}

}  // namespace onnxfuse

#endif  // ONNXFUSE_CACHE_LINES_H_
