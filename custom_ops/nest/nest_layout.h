// How large the blocks of a Program that reduces are, and where the elements of each, and of parts of them, are.
#ifndef ONNXFUSE_NEST_LAYOUT_H_
#define ONNXFUSE_NEST_LAYOUT_H_

#include <cstdint>

#include "nest/nest_blocks.h"

namespace onnxfuse {

// Elements of a longer row that is no group of its own are computed, and reduced, in parts that stay in the level 1 cache.
constexpr int64_t kRowPart = 4096;

bool has_long_rows(const NestGeometry& geometry);
double elements_of(const NestGeometry& geometry);
bool is_in_caches(double bytes);

// What blocks have to hold.
struct BlockDemand {
  int64_t kept;      // bytes for each element of a block, from one phase to another
  int64_t touched;   // likewise, with those of tensors; at least 1
  bool grouped;      // whether rows go through phases in groups
  bool again;        // whether values are computed again in each phase that reads them
  bool reads_once;   // whether all that is computed of elements is of the first phase
};

// Sets the sizes and numbers of blocks, whose geometry is known, and the elements of what is kept of one.  False if that is too
// much, and values have to be computed again.
bool lay_out_blocks(const BlockDemand& demand, NestBlocks* blocks, int64_t* kept_elements);

// Elements of the rows' tensor, in runs of `length` that begin `step` apart, and the results that they belong to.
struct Region {
  int64_t first;
  int64_t length;
  int64_t step;
  int64_t count;
  int64_t first_result;
  int64_t results;
};

Region region_of(const NestBlocks& blocks, int64_t block);

// Part `part` of a block that has parts.
Region part_of(const NestBlocks& blocks, Region region, int64_t part);

// `count` rows of columns, from row `first` on.
Region rows_of(const NestBlocks& blocks, const Region& columns, int64_t first, int64_t count);

}  // namespace onnxfuse

#endif  // ONNXFUSE_NEST_LAYOUT_H_
