// While a block of a Program that reduces is computed, the memory that the next one reads is fetched into the caches.
#ifndef ONNXFUSE_BLOCK_FETCH_H_
#define ONNXFUSE_BLOCK_FETCH_H_

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"
#include "nest/nest_blocks.h"
#include "nest/nest_layout.h"

namespace onnxfuse {

// Of one thread.
class BlockFetch {
 public:
  BlockFetch(const NestBlocks& blocks, const void* const* inputs) : blocks_(blocks), inputs_(inputs) {}

  // A block is computed now, before the `next`; negative for none.
  void begin(int64_t next);
  // Before a pass over elements, or a part: as much of the next block as one of these is to fetch.
  void some();
  // While rows of columns are computed, from `row` on: what comes behind them, or some rows of the next block.
  void rows(const Region& columns, int64_t row);
  // What chains over rows fetch, as they go: so many elements of each tensor, from `first` on.
  void set_ranges(int64_t first, int64_t length);

  FetchedRange* ranges() { return ranges_; }
  size_t range_count() const { return range_count_; }

 private:
  void fetch(const Region& region) const;
  const char* begin_of(const BlockPlace& place, int64_t element) const;

  const NestBlocks& blocks_;
  const void* const* const inputs_;
  int64_t next_ = -1;
  // Of the next block: the first element, how many there are, and how many have been fetched.
  int64_t first_ = 0;
  int64_t end_ = 0;
  int64_t fetched_ = 0;
  FetchedRange ranges_[kMostFetched];
  size_t range_count_ = 0;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_BLOCK_FETCH_H_
