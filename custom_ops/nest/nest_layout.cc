#include "nest/nest_layout.h"

#include <algorithm>

#include "plan/cost.h"
#include "platform/caches.h"
#include "platform/integers.h"

namespace onnxfuse {
namespace {

// Of the last level of the caches, what is sure to be there from one node to the next.
constexpr int64_t kCacheShare = 4;
// About so many elements of rows make a block, where the tensors are in the caches and where they are not; fewer
// where they take more than so many bytes.
constexpr int64_t kBlockElements = 8192;
constexpr int64_t kLargeBlockElements = 2048;
constexpr int64_t kBlockBytes = 128 << 10;
// What a group of rows keeps stays in the level 1 cache beside what it reads and writes; and so many elements are worth a call.
constexpr int64_t kRowGroupElements = 4096;
constexpr int64_t kMostGroupRows = 64;
constexpr int64_t kGroupedBlockElements = 32768;
// Blocks are a multiple of so many, where they are more than one: as many for each of a few threads.
constexpr int64_t kEvenBlocks = 4;
// As many bytes of columns; more where these are not in the caches, for long runs of a row are what the processor reads ahead.
constexpr int64_t kColumnBytes = 512 << 10;
constexpr int64_t kFarColumnBytes = 2 << 20;
// What follows depends on shapes alone, or else results would differ from one machine to the next.
// What a row keeps at most: longer ones are read again.
constexpr int64_t kMostKept = 640 << 10;
// The bytes of a longer row, with those of its tensors, that goes through all phases as a group of its own: the level 2 cache has them.
constexpr int64_t kMostGrouped = 320 << 10;
// So few rows, of so many elements at least, are shared by threads.
constexpr int64_t kFewRows = 16;
constexpr int64_t kSharedRow = 4 * kPartElements;
// Columns of a block, at least where there are as many, and at most.
constexpr int64_t kLeastColumns = 256;
constexpr int64_t kMostColumns = 2048;
// At most where nothing is kept of them, and the longest that are summed from first to last then, and not in parts; about so many
// elements of a block are computed and reduced together.
constexpr int64_t kMostPassing = 4096;
constexpr int64_t kLongestColumn = 4096;
constexpr int64_t kGroupElements = 4096;

// Whether whole blocks are too few for all threads.  That parts of a block are computed by several threads, one block
// after the other, costs what it takes to wake them each time; what they come to is the same.
bool leaves_threads_idle(int64_t blocks) { return parts_of_thread(blocks) < 2; }

int64_t even_blocks(int64_t rows, int64_t block_rows) { return round_up(divide_up(rows, block_rows), kEvenBlocks); }

// Whether a block is a row that threads share, if there are too few.
bool are_few_long_rows(const NestGeometry& geometry) {
  return geometry.rows < kFewRows && geometry.reduced() >= kSharedRow;
}

// Blocks of rows that go through all phases in groups.  False if they do not stay in the level 2 cache.
bool lay_out_groups(int64_t touched, NestBlocks* blocks, int64_t* kept_elements) {
  const NestGeometry& geometry = blocks->geometry;
  const int64_t size = geometry.reduced();
  if (has_long_rows(geometry) && (size > kMostGrouped / touched || are_few_long_rows(geometry))) return false;
  const int64_t group = std::clamp<int64_t>(kRowGroupElements / size, 1, std::min(geometry.rows, kMostGroupRows));
  const int64_t most = std::max(kGroupedBlockElements / size, group);
  const int64_t count = std::min(even_blocks(geometry.rows, most), divide_up(geometry.rows, group));
  blocks->group_rows = group;
  blocks->block_rows = divide_up(geometry.rows, count);
  blocks->blocks = divide_up(geometry.rows, blocks->block_rows);
  *kept_elements = group * size;
  return true;
}

// Blocks of rows that go through one phase after the other.
int64_t lay_out_rows(int64_t touched, NestBlocks* blocks) {
  const NestGeometry& geometry = blocks->geometry;
  const int64_t size = geometry.reduced();
  const bool cached = is_in_caches(elements_of(geometry) * static_cast<double>(touched));
  const int64_t most = std::min(cached ? kBlockElements : kLargeBlockElements, kBlockBytes / touched) / size;
  int64_t rows = geometry.segments.empty() ? std::clamp<int64_t>(most, 1, geometry.rows) : 1;
  if (rows < geometry.rows) rows = divide_up(geometry.rows, even_blocks(geometry.rows, rows));
  blocks->block_rows = rows;
  blocks->blocks = divide_up(geometry.rows, rows);
  return rows * size;
}

// A block is a row, in parts.
bool lay_out_parts(const BlockDemand& demand, NestBlocks* blocks) {
  const NestGeometry& geometry = blocks->geometry;
  const int64_t size = geometry.reduced();
  const bool few = are_few_long_rows(geometry);
  if (!demand.again && (few || demand.kept > kMostKept / size)) return false;
  blocks->blocks = geometry.rows;
  blocks->parts = divide_up(size, blocks->part);
  blocks->shared = few && leaves_threads_idle(blocks->blocks);
  return true;
}

// Of blocks of at most so many columns, unless that is too few: an even share of all columns for each.
int64_t even_columns(int64_t all, int64_t most) {
  const int64_t columns = std::min(all, std::max(most / 16 * 16, kLeastColumns));
  return std::min(all, round_up(divide_up(all, divide_up(all, columns)), int64_t{16}));
}

bool lay_out_columns(const BlockDemand& demand, NestBlocks* blocks, int64_t* kept_elements) {
  const NestGeometry& geometry = blocks->geometry;
  const int64_t segments = geometry.segment_count;
  // Two blocks for each thread at least, and of what only passes: what a column comes to does not depend on how many are in a
  // block.
  const bool passes = demand.reads_once && !demand.again;
  const int64_t share = geometry.results() / (2 * processors());
  const auto columns_of = [&](int64_t bytes) { return std::min(bytes / demand.touched / segments, kMostColumns); };
  int64_t columns = even_columns(geometry.columns, passes ? std::min(share, kMostPassing) : columns_of(kColumnBytes));
  const bool few = geometry.results() < kLeastColumns * 4 && segments >= 1024;
  const bool too_long = segments > (passes ? kLongestColumn : kMostKept / demand.touched / columns);
  const bool far = !passes && !demand.again && !is_in_caches(elements_of(geometry) * static_cast<double>(demand.touched));
  if (far) columns = std::max(columns, even_columns(geometry.columns, std::min(share, columns_of(kFarColumnBytes))));
  if (!demand.again && (few || too_long)) return false;
  if (demand.again) {
    blocks->part = std::max(round_up(kPartElements / columns, kReducedRows), int64_t{16});
    blocks->parts = divide_up(segments, blocks->part);
  } else {
    blocks->group = std::max(kGroupElements / columns / kReducedRows, int64_t{1}) * kReducedRows;
  }
  blocks->block_columns = columns;
  blocks->blocks = geometry.rows * divide_up(geometry.columns, columns);
  blocks->shared = demand.again && few && leaves_threads_idle(blocks->blocks);
  *kept_elements = (demand.again ? blocks->part : segments) * columns;
  return true;
}

// Runs without anything between them are one.
Region whole(Region region) {
  if (region.length != region.step) return region;
  region.length *= region.count;
  region.count = 1;
  return region;
}

}  // namespace

bool has_long_rows(const NestGeometry& geometry) {
  return !geometry.by_columns && geometry.segments.empty() && geometry.run > kRowPart;
}

double elements_of(const NestGeometry& geometry) {
  return static_cast<double>(geometry.results()) * static_cast<double>(geometry.reduced());
}

bool is_in_caches(double bytes) { return bytes <= static_cast<double>(last_level_bytes() / kCacheShare); }

bool lay_out_blocks(const BlockDemand& demand, NestBlocks* blocks, int64_t* kept_elements) {
  if (blocks->geometry.by_columns) return lay_out_columns(demand, blocks, kept_elements);
  if (blocks->part > 0) {
    *kept_elements = blocks->geometry.reduced();
    return lay_out_parts(demand, blocks);
  }
  if (demand.grouped) return lay_out_groups(demand.touched, blocks, kept_elements);
  *kept_elements = lay_out_rows(demand.touched, blocks);
  return true;
}

Region region_of(const NestBlocks& blocks, int64_t block) {
  const NestGeometry& geometry = blocks.geometry;
  if (!geometry.by_columns) {
    const int64_t row = block * blocks.block_rows;
    const int64_t rows = std::min(blocks.block_rows, geometry.rows - row);
    const int64_t first = place_of(geometry.outer, row);
    if (geometry.segments.empty()) return {first, rows * geometry.run, 0, 1, row, rows};
    return {first, geometry.run, geometry.segments[0].stride, geometry.segments[0].size, row, 1};
  }
  const int64_t strips = divide_up(geometry.columns, blocks.block_columns);
  const int64_t column = block % strips * blocks.block_columns;
  const int64_t row = block / strips;
  const int64_t columns = std::min(blocks.block_columns, geometry.columns - column);
  const int64_t first = place_of(geometry.outer, row) + column;
  const int64_t stride = geometry.segments[0].stride;
  return whole({first, columns, stride, geometry.segment_count, row * geometry.columns + column, columns});
}

Region part_of(const NestBlocks& blocks, Region region, int64_t part) {
  const NestGeometry& geometry = blocks.geometry;
  const int64_t first = part * blocks.part;
  if (!geometry.by_columns) {
    region.first += first;
    region.length = std::min(blocks.part, region.length - first);
    return region;
  }
  return rows_of(blocks, region, first, std::min(blocks.part, geometry.segment_count - first));
}

Region rows_of(const NestBlocks& blocks, const Region& columns, int64_t first, int64_t count) {
  const int64_t stride = blocks.geometry.segments[0].stride;
  return whole({columns.first + first * stride, columns.results, stride, count, columns.first_result, columns.results});
}

}  // namespace onnxfuse
