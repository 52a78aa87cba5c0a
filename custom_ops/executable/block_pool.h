// Memory of tensors, kept when they are gone: what the system gives anew costs more than many a run.
#ifndef ONNXFUSE_BLOCK_POOL_H_
#define ONNXFUSE_BLOCK_POOL_H_

#include <cstddef>
#include <memory>
#include <vector>

namespace onnxfuse {

struct FreeMemory {
  void operator()(void* memory) const;
};

// Aligned to a cache line.
struct Block {
  std::unique_ptr<void, FreeMemory> memory;
  size_t bytes = 0;
};

// Any thread may use it.
class BlockPool {
 public:
  // The smallest block kept that is large enough.  If none is, the largest of them is given up for a new one, so that no more
  // blocks are kept than were used at once.  Throws Error if there is no memory.
  Block take(size_t bytes);
  void give_back(Block block) noexcept;

 private:
  std::vector<Block> blocks_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_BLOCK_POOL_H_
