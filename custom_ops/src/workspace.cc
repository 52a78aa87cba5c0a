#include "workspace.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "integers.h"
#include "ort_call.h"

namespace onnxfuse {
namespace {

using Block = Workspace::Block;

constexpr size_t kCacheLine = 64;
// Larger blocks are given back after use, or one large run would hold its memory for ever.
constexpr size_t kMostKept = size_t{16} << 20;

// Memory that is larger than what was asked for would hide what is written behind it.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kKeeps = false;
#else
constexpr bool kKeeps = true;
#endif

// The blocks that are not in use.
class Pool {
 public:
  // The smallest block of `bytes` or more, else the largest; an empty one if there is none.
  Block take(size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (blocks_.empty()) return {};
    const auto suits_better = [bytes](const Block& a, const Block& b) {
      const bool fits = a.bytes >= bytes;
      if (fits != (b.bytes >= bytes)) return fits;
      return fits ? a.bytes < b.bytes : a.bytes > b.bytes;
    };
    const auto best = std::min_element(blocks_.begin(), blocks_.end(), suits_better);
    const Block block = *best;
    *best = blocks_.back();
    blocks_.pop_back();
    return block;
  }

  // False if there is no memory to keep it.
  bool put(const Block& block) noexcept {
    try {
      const std::lock_guard<std::mutex> lock(mutex_);
      blocks_.push_back(block);
      return true;
    } catch (...) {
      return false;
    }
  }

 private:
  std::mutex mutex_;
  std::vector<Block> blocks_;
};

// Never destroyed: threads may still run when the process ends.
Pool& pool() {
  static Pool& instance = *new Pool;
  return instance;
}

}  // namespace

Workspace::Workspace(size_t bytes) {
  if (bytes == 0) return;
  block_ = pool().take(bytes);
  if (block_.bytes >= bytes) return;
  std::free(block_.memory);
  block_.bytes = round_up(bytes, kCacheLine);
  block_.memory = std::aligned_alloc(kCacheLine, block_.bytes);
  if (block_.memory == nullptr) {
    throw Error("out of memory for " + std::to_string(bytes) + " bytes of a thread's own", ORT_FAIL);
  }
}

Workspace::~Workspace() {
  if (block_.memory == nullptr || (kKeeps && block_.bytes <= kMostKept && pool().put(block_))) return;
  std::free(block_.memory);
}

}  // namespace onnxfuse
