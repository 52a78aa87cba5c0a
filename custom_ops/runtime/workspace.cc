#include "runtime/workspace.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "platform/cache_lines.h"
#include "platform/error.h"
#include "platform/forks.h"
#include "platform/integers.h"
#include "platform/system.h"

namespace onnxfuse {
namespace {

using Block = Workspace::Block;

// Larger blocks are given back after use, or one large run would hold its memory for ever.
constexpr size_t kMostKept = size_t{16} << 20;

// Memory that is larger than what was asked for would hide what is written behind it.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kKeeps = false;
#else
constexpr bool kKeeps = true;
#endif

// The place of the smallest block of `bytes` or more, else of the largest.  There is at least one.
Block* best_of(Block* first, Block* last, size_t bytes) {
  return std::min_element(first, last, [bytes](const Block& a, const Block& b) {
    const bool fits = a.bytes >= bytes;
    if (fits != (b.bytes >= bytes)) return fits;
    return fits ? a.bytes < b.bytes : a.bytes > b.bytes;
  });
}

// Blocks that no thread keeps for itself.
class Pool {
 public:
  // An empty block if there is none.
  Block take(size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_of(this));
    if (blocks_.empty()) return {};
    Block* const best = best_of(blocks_.data(), blocks_.data() + blocks_.size(), bytes);
    const Block block = *best;
    *best = blocks_.back();
    blocks_.pop_back();
    return block;
  }

  // False if there is no memory to keep it.
  bool put(const Block& block) noexcept {
    try {
      const std::lock_guard<std::mutex> lock(mutex_of(this));
      blocks_.push_back(block);
      return true;
    } catch (...) {
      return false;
    }
  }

 private:
  std::vector<Block> blocks_;
};

Pool& pool() {
  static Once<Pool> instance;
  return instance.get([] { return Pool(); });
}

void hand_on(const Block& block) {
  if (!pool().put(block)) release(block.memory);
}

// Whether this thread has given up its own blocks, for it ends, but may still run destructors of others.  It has none itself.
thread_local bool ended = false;

// Blocks that this thread has used last, and keeps: what threads exchange they must fetch from each other's caches.  They go
// to the others when it ends.
class Own {
 public:
  ~Own() {
    std::for_each(blocks_, blocks_ + count_, hand_on);
    ended = true;
  }

  // An empty block if there is none, or with `any` unset none that is large enough.
  Block take(size_t bytes, bool any) {
    if (ended || count_ == 0) return {};
    Block* const best = best_of(blocks_, blocks_ + count_, bytes);
    if (best->bytes < bytes && !any) return {};
    return std::exchange(*best, blocks_[--count_]);
  }

  bool put(const Block& block) {
    if (ended || count_ == kMost) return false;
    blocks_[count_++] = block;
    return true;
  }

 private:
  static constexpr size_t kMost = 2;
  Block blocks_[kMost];
  size_t count_ = 0;
};

thread_local Own own;

// The block of `bytes` or more that suits best, this thread's own first; else one that is given up, which may be empty.
Block take(size_t bytes) {
  Block block = own.take(bytes, false);
  if (block.memory != nullptr) return block;
  block = pool().take(bytes);
  if (block.bytes >= bytes) return block;
  const Block smaller = own.take(bytes, true);
  if (smaller.memory == nullptr) return block;
  if (block.memory != nullptr) hand_on(block);
  return smaller;
}

}  // namespace

Workspace::Workspace(size_t bytes) {
  if (bytes == 0) return;
  block_ = take(bytes);
  if (block_.bytes >= bytes) return;
  release(block_.memory);
  block_.bytes = round_up(bytes, kCacheLine);
  block_.memory = allocate(block_.bytes);
  if (block_.memory == nullptr) {
    throw Error("out of memory for " + std::to_string(bytes) + " bytes of a thread's own", ErrorCode::Fail);
  }
}

Workspace::~Workspace() {
  if (block_.memory == nullptr) return;
  if (!kKeeps || block_.bytes > kMostKept) {
    release(block_.memory);
  } else if (!own.put(block_)) {
    hand_on(block_);
  }
}

}  // namespace onnxfuse
