// Shared memory: what lies outside of an array, and races.
//
// Two threads race for a place if one of them writes there and nothing orders their accesses: no barrier of the block in
// between, nor one of their warp if it is the same.  That is found whichever of the fibers runs first.

#ifndef ONNXFUSE_EMULATION_SHARED_MEMORY_H_
#define ONNXFUSE_EMULATION_SHARED_MEMORY_H_

namespace emulation {

// An access to an array of `size` elements in shared memory; the alignment is in elements too.
inline void check_shared(int64_t first, int64_t count, int64_t size, int64_t alignment) {
  if (first >= 0 && first + count <= size && first % alignment == 0) return;
  throw Violation{"shared memory: " + std::to_string(count) + " elements from " + std::to_string(first) + " of " +
                  std::to_string(size) + ", aligned to " + std::to_string(alignment)};
}

// Who has used two neighbouring bytes last, in the current block.
class Uses {
 public:
  void write() {
    check(writer_, "writes");
    check(reader_, "writes");
    writer_ = now();
    reader_ = {};
  }

  void read() {
    check(writer_, "reads");
    const Use use = now();
    if (reader_.thread == nobody || reader_.block_phase != use.block_phase) {
      reader_ = use;
    } else if (reader_.warp != use.warp) {
      reader_.warp = reader_.thread = several;
    } else if (reader_.warp_phase != use.warp_phase) {
      reader_ = use;
    } else if (reader_.thread != use.thread) {
      reader_.thread = several;
    }
  }

 private:
  static constexpr int nobody = -1, several = -2;

  struct Use {
    int thread = nobody, warp = nobody;
    unsigned block_phase = 0, warp_phase = 0;
  };

  static Use now() {
    const BlockOfFibers& block = *BlockOfFibers::current;
    const int thread = static_cast<int>(threadIdx.x), warp = thread / static_cast<int>(warp_size);
    return {thread, warp, block.block_phase(), block.warp_phase(warp)};
  }

  static void check(const Use& before, const char* what) {
    const Use use = now();
    if (before.thread == nobody || before.thread == use.thread || before.block_phase != use.block_phase) return;
    if (before.warp == use.warp && before.warp_phase != use.warp_phase) return;
    throw Violation{std::string("shared memory: a thread ") + what + " what another one uses, without a barrier between"};
  }

  Use writer_, reader_;
};

// The uses of all shared memory: a hash table that is empty again for every block.
class SharedUses {
 public:
  void clear() { ++block_; }

  void trace(const void* address, size_t bytes, bool is_store) {
    const auto first = reinterpret_cast<uintptr_t>(address) / 2;
    for (uintptr_t unit = first; unit < first + bytes / 2; ++unit) {
      Uses& uses = find(unit);
      if (is_store) uses.write();
      else uses.read();
    }
  }

 private:
  static constexpr size_t size = 1 << 16;  // more than the units of what a block may have

  struct Slot {
    uintptr_t unit = 0;
    uint64_t block = 0;
    Uses uses;
  };

  Uses& find(uintptr_t unit) {
    size_t at = unit % size;
    while (slots_[at].block == block_ && slots_[at].unit != unit) at = (at + 1) % size;
    if (slots_[at].block != block_) slots_[at] = {unit, block_, Uses()};
    return slots_[at].uses;
  }

  std::vector<Slot> slots_ = std::vector<Slot>(size);
  uint64_t block_ = 1;
};

inline thread_local SharedUses shared_uses;

}  // namespace emulation

#endif  // ONNXFUSE_EMULATION_SHARED_MEMORY_H_
