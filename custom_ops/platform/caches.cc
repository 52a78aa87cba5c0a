#include "platform/caches.h"

#include <algorithm>
#include <cstdlib>

#include "platform/forks.h"
#include "platform/system.h"

namespace onnxfuse {
namespace {

// Virtual machines report sizes of 0, or of caches that they share with many others.
int64_t within(int level, int64_t guess, int64_t low, int64_t high) {
  const int64_t size = cache_bytes(level);
  return size > 0 ? std::clamp(size, low, high) : guess;
}

}  // namespace

int64_t level1_bytes() {
  static Once<int64_t> bytes;
  return bytes.get([] { return within(1, 32 << 10, 16 << 10, 128 << 10); });
}

int64_t level2_bytes() {
  // More is left to what else is there: strips of a convolution for 2 MB were slower than for 1 MB.
  static Once<int64_t> bytes;
  return bytes.get([] { return within(2, 512 << 10, 256 << 10, 1 << 20); });
}

int64_t last_level_bytes() {
  static Once<int64_t> bytes;
  return bytes.get([] {
    if (const char* wish = std::getenv("ONNXFUSE_CACHE_BYTES")) return static_cast<int64_t>(std::atoll(wish));
    return within(3, 32 << 20, 4 << 20, 64 << 20);
  });
}

}  // namespace onnxfuse
