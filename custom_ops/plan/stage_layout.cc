// The part of StageBuilder that lays out what was emitted: the size of a tile, the places of its buffers, and what is
// read and written when.
#include <algorithm>

#include "figures/plan.h"
#include "plan/cost.h"
#include "plan/stage_builder.h"
#include "platform/cache_lines.h"
#include "platform/integers.h"

namespace onnxfuse {
namespace {

// A tile's share of all buffers and tensors should stay in the level 1 cache.
constexpr int64_t kTileBytes = 24 * 1024;
constexpr int64_t kMinTile = 64;
constexpr int64_t kMaxTile = 4096;
// Of a row that is read transposed.
constexpr int64_t kShortTransposed = 1024;
constexpr int64_t kLineElements = 16;
// Whole blocks of vectors of every type (chains.inc), and few enough elements for even shares.
constexpr int64_t kSeamlessTile = 512;

}  // namespace

void StageBuilder::choose_tile() {
  auto bytes = static_cast<int64_t>(stage_.buffer_bytes);  // that one element of a tile touches
  for (const Slot& slot : stage_.slots) {
    if (slot.access == Access::Whole || slot.access == Access::Runs) bytes += slot.size;
  }
  const double element_cost = stage_.tile_cost + kByteNanoseconds * static_cast<double>(bytes);
  int64_t tile = std::clamp(kTileBytes / std::max<int64_t>(bytes, 1), kMinTile, kMaxTile);
  const bool once = stage_.steps.size() == 1 && stage_.prologue.empty() && stage_.buffer_bytes == 0;  // nothing is read twice
  stage_.seamless = once && !stage_.by_rows;
  if (stage_.seamless) {
    tile = kSeamlessTile;
  } else if (once) {
    tile = std::max(tile, static_cast<int64_t>(kChunkNanoseconds / std::max(element_cost, kByteNanoseconds)));
  }
  tile = tile / kMinTile * kMinTile;
  if (stage_.by_rows) {
    const int64_t pieces = repeated_ ? 1 : divide_up(stage_.columns, tile);
    tile = round_up(divide_up(stage_.columns, pieces), kMinTile);
    stage_.tiles_per_row = divide_up(stage_.columns, tile);
    stage_.tiles = divide_up(stage_.elements, stage_.columns) * stage_.tiles_per_row;
  } else {
    if (transposed_) {
      // Whole cache lines of each column, and four where that is not too much.
      const int64_t rows = stage_.columns <= kShortTransposed ? 4 * kLineElements : kLineElements;
      period_ = std::max(period_, stage_.columns);
      tile = std::max(tile, rows * stage_.columns);
    }
    tile = std::max<int64_t>(tile / period_, 1) * period_;
    stage_.tiles = (stage_.elements - 1) / tile + 1;
  }
  stage_.tile = tile;
  const size_t padded = round_up(static_cast<size_t>(tile), kCacheLine);
  stage_.buffer_bytes *= padded;
  for (Slot& slot : stage_.slots) {
    if (slot.place == Place::Buffer) slot.offset *= padded;
  }
  const auto used = static_cast<double>(std::min({tile, stage_.elements, stage_.by_rows ? stage_.columns : tile}));
  const double steps = stage_.seamless ? 0.0 : static_cast<double>(stage_.steps.size());
  stage_.tile_cost = element_cost * used + kStepNanoseconds * steps;
}

void StageBuilder::list_moving_slots() {
  for (size_t s = 0; s < stage_.slots.size(); ++s) {
    const Access access = stage_.slots[s].access;
    const bool moves = access == Access::Whole || access == Access::Row || access == Access::Scalars || access == Access::Runs;
    if (moves) stage_.moving.push_back(static_cast<uint16_t>(s));
  }
}

// Gives every buffer its place among the tile buffers, for a tile of one element; one that is no longer read makes room
// for the next.
void StageBuilder::place_buffers() {
  const auto links_of = [&](const Step& step) {
    return std::pair(stage_.links.begin() + step.first, stage_.links.begin() + step.first + step.count);
  };
  std::vector<int> last_read(stage_.slots.size(), -1);
  const auto is_buffer = [&](uint16_t slot) { return stage_.slots[slot].place == Place::Buffer; };
  const int end = static_cast<int>(stage_.steps.size());
  for (const Step& step : stage_.prologue) last_read[step.out] = end;
  for (int s = 0; s < end; ++s) {
    const Step& step = stage_.steps[s];
    const auto reads = [&](uint16_t slot) { last_read[slot] = std::max(last_read[slot], s); };
    for (int i = 0; i < step.arity; ++i) reads(step.in[i]);
    if (step.kind != Step::Kind::Chain) continue;
    for (auto [link, stop] = links_of(step); link != stop; ++link) {
      if (link->link == Link::Keep || link_reads(link->link) > 0) reads(link->slot);
      if (link_reads(link->link) > 1) reads(link->slot2);
    }
  }
  std::vector<size_t> free[9];  // by element size
  const auto allocate = [&](uint16_t index) {
    Slot& slot = stage_.slots[index];
    if (!free[slot.size].empty()) {
      slot.offset = free[slot.size].back();
      free[slot.size].pop_back();
      return;
    }
    slot.offset = stage_.buffer_bytes;
    stage_.buffer_bytes += slot.size;
  };
  std::vector<bool> released(stage_.slots.size());
  const auto release = [&](uint16_t slot, int s) {
    if (!is_buffer(slot) || last_read[slot] != s || released[slot]) return;
    released[slot] = true;
    free[stage_.slots[slot].size].push_back(stage_.slots[slot].offset);
  };
  for (const Step& step : stage_.prologue) allocate(step.out);
  for (int s = 0; s < end; ++s) {
    const Step& step = stage_.steps[s];
    if (step.kind == Step::Kind::Chain) {
      // Kept values are written while the chain still reads its operands, so they come before the operands' release.
      for (auto [link, stop] = links_of(step); link != stop; ++link) {
        if (link->link == Link::Keep && is_buffer(link->slot)) allocate(link->slot);
      }
    }
    for (int i = 0; i < step.arity; ++i) release(step.in[i], s);
    const bool in_chain = step.kind == Step::Kind::Chain;
    if (is_buffer(step.out)) allocate(step.out);
    if (in_chain) {
      for (auto [link, stop] = links_of(step); link != stop; ++link) {
        if (link->link == Link::Keep || link_reads(link->link) > 0) release(link->slot, s);
        if (link_reads(link->link) > 1) release(link->slot2, s);
      }
    }
  }
}

// What the executor must know where an output shares memory with an input.
void StageBuilder::record_uses() {
  const int number = static_cast<int>(plan_.stages.size());
  const auto read = [&](uint16_t index, int moment) {
    const Slot& slot = stage_.slots[index];
    if (slot.place != Place::Input) return;
    InputUse& use = plan_.inputs[slot.index];
    if (use.stage != number) {
      use.whole = use.stages == 0;
      ++use.stages;
      use.stage = number;
    }
    const bool is_part = is_view(program_.values[slot.index]);
    use.whole = use.whole && slot.access == Access::Whole && !is_part;
    use.last_read = moment;
  };
  const auto write = [&](uint16_t index, int moment) {
    const Slot& slot = stage_.slots[index];
    if (slot.place != Place::Output) return;
    OutputUse& use = plan_.outputs[slot.index];
    if (use.stage != number) use.first_write = moment;
    use.whole = use.whole && slot.access == Access::Whole;
    use.stage = number;
  };
  // A kernel reads an element before it writes the same one; so does a chain, but link after link.
  int moment = 0;
  for (const Step& step : stage_.prologue) read(step.in[0], moment);
  for (const Step& step : stage_.steps) {
    for (int i = 0; i < step.arity; ++i) read(step.in[i], moment);
    for (uint32_t l = step.first; l < step.first + step.count; ++l, ++moment) {
      const PlannedLink& link = stage_.links[l];
      if (link.link == Link::Keep) write(link.slot, moment);
      if (link_reads(link.link) > 0) read(link.slot, moment);
      if (link_reads(link.link) > 1) read(link.slot2, moment);
    }
    write(step.out, moment++);
  }
}

}  // namespace onnxfuse
