#include "executable/block_pool.h"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <utility>

#include "platform/cache_lines.h"
#include "platform/error.h"
#include "platform/forks.h"
#include "platform/system.h"

namespace onnxfuse {

void FreeMemory::operator()(void* memory) const { release(memory); }

Block BlockPool::take(size_t bytes) {
  const auto smaller = [](const Block& a, const Block& b) { return a.bytes < b.bytes; };
  Block largest;  // freed without the mutex
  {
    const std::lock_guard<std::mutex> lock(mutex_of(this));
    auto best = blocks_.end();
    for (auto block = blocks_.begin(); block != blocks_.end(); ++block) {
      if (block->bytes >= bytes && (best == blocks_.end() || smaller(*block, *best))) best = block;
    }
    const bool fits = best != blocks_.end();
    if (!fits) best = std::max_element(blocks_.begin(), blocks_.end(), smaller);
    if (best != blocks_.end()) {
      std::swap(*best, blocks_.back());
      largest = std::move(blocks_.back());
      blocks_.pop_back();
      if (fits) return largest;
    }
  }
  largest = {};
  if (bytes > SIZE_MAX - kCacheLine) throw Error("there is no memory for a tensor");
  const size_t whole = (bytes / kCacheLine + 1) * kCacheLine;
  Block block{std::unique_ptr<void, FreeMemory>(allocate(whole)), whole};
  if (block.memory == nullptr) throw Error("there is no memory for a tensor");
  return block;
}

void BlockPool::give_back(Block block) noexcept {
  if (block.memory == nullptr) return;
  try {
    const std::lock_guard<std::mutex> lock(mutex_of(this));
    blocks_.push_back(std::move(block));
  } catch (...) {
    // It is not kept.
  }
}

}  // namespace onnxfuse
