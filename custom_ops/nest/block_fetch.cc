#include "nest/block_fetch.h"

#include <algorithm>

#include "platform/cache_lines.h"

namespace onnxfuse {
namespace {

void fetch_lines(const char* first, const char* last) {
  for (const char* line = first; line < last; line += kCacheLine) __builtin_prefetch(line, 0, 2);
}

}  // namespace

void BlockFetch::begin(int64_t next) {
  fetched_ = end_ = 0;
  range_count_ = 0;
  next_ = next;
  if (blocks_.group > 0) return;
  if (next < 0 || blocks_.fetched.empty()) return;
  const Region region = region_of(blocks_, next);
  if (region.count > 1) return;
  if (blocks_.fetching_chains > 0) {
    set_ranges(region.first, region.length);
    return;
  }
  first_ = region.first;
  end_ = region.length;
}

void BlockFetch::some() {
  const int64_t end = std::min(end_, fetched_ + blocks_.fetched_at_once);
  for (const BlockPlace& place : blocks_.fetched) fetch_lines(begin_of(place, first_ + fetched_), begin_of(place, first_ + end));
  fetched_ = end;
}

void BlockFetch::rows(const Region& columns, int64_t row) {
  if (blocks_.fetched.empty()) return;
  const int64_t segments = blocks_.geometry.segment_count;
  if (blocks_.fetched_at_once > 0) {
    const int64_t count = std::min(blocks_.fetched_at_once, segments - fetched_);
    if (next_ < 0 || count <= 0) return;
    fetch(rows_of(blocks_, region_of(blocks_, next_), fetched_, count));
    fetched_ += count;
    return;
  }
  const int64_t behind = row + blocks_.group;
  if (behind < segments) {
    fetch(rows_of(blocks_, columns, behind, std::min(blocks_.group, segments - behind)));
  } else if (next_ >= 0) {
    fetch(rows_of(blocks_, region_of(blocks_, next_), 0, std::min(blocks_.group, segments)));
  }
}

void BlockFetch::set_ranges(int64_t first, int64_t length) {
  range_count_ = 0;
  for (const BlockPlace& place : blocks_.fetched) {
    const char* const begin = begin_of(place, first);
    const size_t step = kFetchElements * place.size / static_cast<size_t>(blocks_.fetching_chains);
    ranges_[range_count_++] = {begin, begin, begin + static_cast<size_t>(length) * place.size, step};
  }
}

void BlockFetch::fetch(const Region& region) const {
  for (const BlockPlace& place : blocks_.fetched) {
    for (int64_t i = 0; i < region.count; ++i) {
      const char* const run = begin_of(place, region.first + i * region.step);
      fetch_lines(run, run + static_cast<size_t>(region.length) * place.size);
    }
  }
}

const char* BlockFetch::begin_of(const BlockPlace& place, int64_t element) const {
  return static_cast<const char*>(inputs_[place.at]) + place.offset + static_cast<size_t>(element) * place.size;
}

}  // namespace onnxfuse
