#include "platform/caches.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "platform/forks.h"

namespace onnxfuse {
namespace {

// A sysconf name that no system knows.
constexpr int kUnknown = -1;

// glibc has names for caches, other C libraries have not.
#ifdef _SC_LEVEL1_DCACHE_SIZE
constexpr int kLevel1 = _SC_LEVEL1_DCACHE_SIZE;
#else
constexpr int kLevel1 = kUnknown;
#endif
#ifdef _SC_LEVEL2_CACHE_SIZE
constexpr int kLevel2 = _SC_LEVEL2_CACHE_SIZE;
#else
constexpr int kLevel2 = kUnknown;
#endif
#ifdef _SC_LEVEL3_CACHE_SIZE
constexpr int kLevel3 = _SC_LEVEL3_CACHE_SIZE;
#else
constexpr int kLevel3 = kUnknown;
#endif

// Virtual machines report sizes of 0, or of caches that they share with many others.
int64_t cache_bytes(int name, int64_t guess, int64_t low, int64_t high) {
  const int64_t size = name == kUnknown ? 0 : sysconf(name);
  return size > 0 ? std::clamp(size, low, high) : guess;
}

}  // namespace

int64_t level1_bytes() {
  static Once<int64_t> bytes;
  return bytes.get([] { return cache_bytes(kLevel1, 32 << 10, 16 << 10, 128 << 10); });
}

int64_t level2_bytes() {
  // More is left to what else is there: strips of a convolution for 2 MB were slower than for 1 MB.
  static Once<int64_t> bytes;
  return bytes.get([] { return cache_bytes(kLevel2, 512 << 10, 256 << 10, 1 << 20); });
}

int64_t last_level_bytes() {
  static Once<int64_t> bytes;
  return bytes.get([] {
    if (const char* wish = std::getenv("ONNXFUSE_CACHE_BYTES")) return static_cast<int64_t>(std::atoll(wish));
    return cache_bytes(kLevel3, 32 << 20, 4 << 20, 64 << 20);
  });
}

}  // namespace onnxfuse
