#include "workspace.h"

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

#include "ort_call.h"

namespace onnxfuse {
namespace {

constexpr size_t kCacheLine = 64;

// Memory that is larger than what was asked for would hide what is written behind it.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kKeeps = false;
#else
constexpr bool kKeeps = true;
#endif

struct Pool {
  std::mutex mutex;
  std::vector<Workspace::Block> blocks;  // not in use
};

// Never destroyed: threads may still run when the process ends.
Pool& pool() {
  static Pool& instance = *new Pool;
  return instance;
}

}  // namespace

Workspace::Workspace(size_t bytes) {
  {
    const std::lock_guard<std::mutex> lock(pool().mutex);
    if (!pool().blocks.empty()) {
      block_ = pool().blocks.back();
      pool().blocks.pop_back();
    }
  }
  if (block_.bytes >= bytes) return;
  std::free(block_.memory);
  block_.bytes = (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
  block_.memory = std::aligned_alloc(kCacheLine, std::max(block_.bytes, kCacheLine));
  if (block_.memory == nullptr) throw Error("out of memory for " + std::to_string(bytes) + " bytes of a thread's own");
}

Workspace::~Workspace() {
  try {
    if (!kKeeps) {
      std::free(block_.memory);
      return;
    }
    const std::lock_guard<std::mutex> lock(pool().mutex);
    pool().blocks.push_back(block_);
  } catch (...) {
    std::free(block_.memory);
  }
}

}  // namespace onnxfuse
