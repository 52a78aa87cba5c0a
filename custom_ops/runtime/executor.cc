#include "runtime/executor.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <optional>
#include <type_traits>

#include "plan/cost.h"
#include "platform/cache_lines.h"
#include "platform/error.h"
#include "platform/integers.h"
#include "runtime/gather.h"
#include "runtime/parts.h"
#include "runtime/workspace.h"

namespace onnxfuse {
namespace {

// Where tiles run from the last to the first, about so many elements together run from the first to the last.
constexpr int64_t kElementsForward = 32 << 10;
// What a thread works in is on its stack, unless it is more than this: a stack of 1 MB must do, and others use it too.
constexpr size_t kMaxStackBytes = 64 * 1024;

struct StageRun {
  const Program& program;
  const Stage& stage;
  const Tensors& tensors;
};

template <class T> bool has_zero(const void* values, size_t count) {
  const T* const p = static_cast<const T*>(values);
  T found = 0;
  for (size_t i = 0; i < count; ++i) found |= static_cast<T>(p[i] == 0);
  return found != 0;
}

bool has_zero(const void* values, size_t size, size_t count) {
  switch (size) {
    case 1:
      return has_zero<uint8_t>(values, count);
    case 2:
      return has_zero<uint16_t>(values, count);
    case 4:
      return has_zero<uint32_t>(values, count);
    default:
      return has_zero<uint64_t>(values, count);
  }
}

// One thread's view of a stage: where each slot's data for the current tile is.
class TileRunner {
 public:
  TileRunner(const StageRun& run, char* buffers, char** pointers)
      : run_(run), stage_(run.stage), buffers_(buffers), pointers_(pointers) {
    find_pointers();
  }

  void run_tiles(int64_t first, int64_t last, bool backward) {
    run_prologue(stage_.elements);
    if (!backward) return run_forward(first, last);
    const int64_t together = std::max<int64_t>(kElementsForward / stage_.tile, 1);
    for (int64_t end = last; end > first; end -= together) run_forward(std::max(first, end - together), end);
  }

  void run_elements(const ElementRuns& runs) {
    // A few elements read no more of what operands repeat.
    const int64_t reach = stage_.by_rows ? runs.first % stage_.columns + runs.length : runs.length;
    run_prologue(runs.count == 1 ? reach : stage_.elements);
    run_each(runs);
  }

  // The same again; what all elements read has not changed.
  void run_elements_again(const ElementRuns& runs) {
    if (!is_prepared_) {
      find_pointers();
      run_prologue(stage_.elements);
      is_prepared_ = true;
    }
    run_each(runs);
  }

 private:
  void find_pointers() {
    for (size_t s = 0; s < stage_.slots.size(); ++s) pointers_[s] = base(stage_.slots[s]);
  }

  void run_each(const ElementRuns& runs) {
    const int64_t most = stage_.seamless ? runs.length : stage_.tile;
    for (int64_t i = 0; i < runs.count; ++i) {
      const int64_t last = runs.first + i * runs.step + runs.length;
      for (int64_t first = last - runs.length; first < last;) {
        const int64_t row = stage_.by_rows ? first / stage_.columns : 0;
        const int64_t column = stage_.by_rows ? first % stage_.columns : 0;
        first += run_steps(first, row, column, last, most);
      }
      if (runs.moving != nullptr) *runs.moving = static_cast<const char*>(*runs.moving) + runs.by;
      if (runs.moving_output != nullptr) *runs.moving_output = static_cast<char*>(*runs.moving_output) + runs.by;
      for (size_t m = 0; m < runs.moved_count; ++m) {
        const MovedTensor& tensor = runs.moved[m];
        *tensor.pointer = static_cast<const char*>(*tensor.pointer) + tensor.by;
      }
    }
  }

  void run_forward(int64_t first, int64_t last) {
    if (stage_.seamless) {
      run_steps(first * stage_.tile, 0, 0, std::min(last * stage_.tile, stage_.elements), stage_.elements);
      return;
    }
    if (!stage_.by_rows) {
      for (int64_t tile = first; tile < last; ++tile) {
        next_ = stage_.fetches && tile + 1 < last ? (tile + 1) * stage_.tile : -1;
        run_steps(tile * stage_.tile, 0, 0, stage_.elements, stage_.tile);
      }
      return;
    }
    int64_t row = first / stage_.tiles_per_row;
    int64_t column = first % stage_.tiles_per_row * stage_.tile;
    for (int64_t tile = first; tile < last; ++tile) {
      column += run_steps(row * stage_.columns + column, row, column, stage_.elements, stage_.tile);
      if (column < stage_.columns) continue;
      column = 0;
      ++row;
    }
  }

  char* base(const Slot& slot) const {
    switch (slot.place) {
      case Place::Input:
        return static_cast<char*>(const_cast<void*>(run_.tensors.inputs[slot.index])) + slot.offset;
      case Place::Output:
        return static_cast<char*>(run_.tensors.outputs[slot.index]);
      case Place::Scratch:
        return run_.tensors.scratch + slot.offset;
      case Place::Const:
      case Place::Derived:
        return reinterpret_cast<char*>(const_cast<uint64_t*>(constant_of(run_.program, stage_, slot)));
      default:
        return buffers_ + slot.offset;
    }
  }

  // For the first `most` elements of a row.
  void run_prologue(int64_t most) {
    start_ = 0;
    count_ = static_cast<size_t>(std::min({stage_.tile, stage_.elements, most}));
    for (const Step& step : stage_.prologue) run_step(step);
  }

  // Runs the steps for a tile of `most` elements from element `start`, which is at `column` of `row`, that ends before `end`.
  // Returns how many elements it has.
  int64_t run_steps(int64_t start, int64_t row, int64_t column, int64_t end, int64_t most) {
    const int64_t rest = std::min(end - start, stage_.by_rows ? stage_.columns - column : stage_.elements);
    const int64_t count = std::min(most, rest);
    start_ = start;
    count_ = static_cast<size_t>(count);
    for (const uint16_t s : stage_.moving) {
      const Slot& slot = stage_.slots[s];
      if (slot.access == Access::Whole) {
        pointers_[s] = base(slot) + start_ * slot.size;
      } else if (slot.access == Access::Runs) {
        pointers_[s] = base(slot) + (start_ / slot.run * slot.step + start_ % slot.run) * slot.size;
      } else if (slot.access == Access::Scalars) {
        pointers_[s] = base(slot) + start_ / stage_.columns * slot.size;
      } else {
        pointers_[s] = base(slot) + (row_offset(stage_, slot, row) + (slot.by_column ? column : 0)) * slot.size;
      }
    }
    for (const Step& step : stage_.steps) run_step(step);
    return count;
  }

  void run_step(const Step& step) {
    char* out = pointers_[step.out];
    switch (step.kind) {
      case Step::Kind::Kernel: {
        const void* in[3];
        for (int i = 0; i < step.arity; ++i) in[i] = pointers_[step.in[i]];
        if (step.divisor != 0 && has_zero(in[1], step.divisor, step.one_divisor ? 1 : count_)) {
          throw Error("an integer is divided by zero", ErrorCode::Fail);  // as in ONNX Runtime
        }
        step.kernel(out, in, step.single ? 1 : count_);
        break;
      }
      case Step::Kind::Chain:
        run_chain(step, out);
        break;
      case Step::Kind::Gather:
        gather(stage_.slots[step.in[0]], base(stage_.slots[step.in[0]]), start_, count_, out, next_);
        break;
      case Step::Kind::Coordinates:
        coordinates(stage_.slots[step.in[0]], step.type, start_, count_, out);
        break;
      case Step::Kind::Copy:
        if (out != pointers_[step.in[0]]) std::memcpy(out, pointers_[step.in[0]], count_ * stage_.slots[step.out].size);
        break;
      case Step::Kind::Scatter:
        scatter(stage_.slots[step.out], pointers_[step.in[0]], start_, count_, out);
        break;
      case Step::Kind::StreamCopy:
        kernels().stream(out, pointers_[step.in[0]], count_ * stage_.slots[step.out].size);
        break;
    }
  }

  void run_chain(const Step& step, char* out) {
    ChainLink links[kMaxChainLinks];
    for (uint32_t i = 0; i < step.count; ++i) {
      const PlannedLink& link = stage_.links[step.first + i];
      links[i] = {link.link, pointers_[link.slot], pointers_[link.slot2]};
    }
    step.chain(out, pointers_[step.in[0]], links, step.count, count_, step.stores);
  }

  const StageRun run_;
  const Stage& stage_;
  char* buffers_;
  char** pointers_;
  int64_t start_ = 0;
  size_t count_ = 0;
  int64_t next_ = -1;  // the first element of what is fetched meanwhile; -1: nothing is
  bool is_prepared_ = false;
};

size_t bytes_of_pointers(const Stage& stage) { return round_up(stage.slots.size() * sizeof(char*), kCacheLine); }

// Calls `run` with memory for the slots' pointers and for the buffers.
template <class Run> void with_memory(const Stage& stage, const Run& run) {
  const size_t of_pointers = bytes_of_pointers(stage);
  const size_t bytes = of_pointers + stage.buffer_bytes;
  std::optional<Workspace> workspace;
  char* memory;
  if (bytes <= kMaxStackBytes) {
    memory = aligned(static_cast<char*>(__builtin_alloca(bytes + kCacheLine)));
  } else {
    memory = static_cast<char*>(workspace.emplace(bytes).data());
  }
  run(reinterpret_cast<char**>(memory), memory + of_pointers);
}

// Whether a stage that turns runs backward: for each thread that runs nodes every other one does.  What was read and
// written last, by the node before or by the same one in the run before, is what the caches still have.
bool turn() {
  static thread_local bool backward = true;
  return backward = !backward;
}

}  // namespace

void run_tiles(const Program& program, const Stage& stage, const Tensors& tensors, int64_t first, int64_t last,
               bool backward) {
  with_memory(stage, [&](char** pointers, char* buffers) {
    TileRunner({program, stage, tensors}, buffers, pointers).run_tiles(first, last, backward);
  });
}

void run_elements(const Program& program, const Stage& stage, const Tensors& tensors, const ElementRuns& runs) {
  with_memory(stage, [&](char** pointers, char* buffers) {
    TileRunner({program, stage, tensors}, buffers, pointers).run_elements(runs);
  });
}

class ElementRunner {
 public:
  ElementRunner(const Program& program, const Stage& stage, const Tensors& tensors, char* memory)
      : tensors_(tensors),
        runner_({program, stage, tensors_}, memory + bytes_of_pointers(stage), reinterpret_cast<char**>(memory)) {}

  TileRunner& tiles() { return runner_; }

 private:
  const Tensors tensors_;
  TileRunner runner_;
};

size_t runner_bytes(const Stage& stage) {
  return round_up(sizeof(ElementRunner), kCacheLine) + bytes_of_pointers(stage) + round_up(stage.buffer_bytes, kCacheLine);
}

ElementRunner* make_runner(const Program& program, const Stage& stage, const Tensors& tensors, void* memory) {
  static_assert(std::is_trivially_destructible_v<ElementRunner>);
  char* const own = static_cast<char*>(memory) + round_up(sizeof(ElementRunner), kCacheLine);
  return new (memory) ElementRunner(program, stage, tensors, own);
}

void run_elements(ElementRunner* runner, const ElementRuns& runs) { runner->tiles().run_elements_again(runs); }

bool is_chain_of_tiles(const Program& program, const Stage& stage, bool tensors) {
  if (program.outputs.size() != 1 || stage.steps.size() != 1 || !stage.prologue.empty()) return false;
  const Step& step = stage.steps[0];
  if (step.kind != Step::Kind::Chain || step.chain != kernels().chains[static_cast<int>(DType::f32)]) return false;
  const Slot& in = stage.slots[step.in[0]];
  const Slot& out = stage.slots[step.out];
  if (in.place != Place::Input || in.index != 0 || in.offset != 0 || in.access != Access::Whole) return false;
  if (out.place != Place::Output || out.access != Access::Whole) return false;
  const auto fits = [&](uint16_t index) {
    const Slot& slot = stage.slots[index];
    if (constant_of(program, stage, slot) != nullptr) return true;
    const bool other = slot.place == Place::Input && slot.index != 0;
    return other && (slot.access == Access::Fixed || (tensors && slot.access == Access::Whole));
  };
  return std::all_of(stage.links.begin(), stage.links.end(), [&](const PlannedLink& link) {
    const int reads = link_reads(link.link);
    return link.link != Link::Keep && (reads < 1 || fits(link.slot)) && (reads < 2 || fits(link.slot2));
  });
}

bool only_bounds_tiles(const Program& program, const Stage& stage) {
  if (!is_chain_of_tiles(program, stage, false) || stage.links.size() != 1) return false;
  return stage.links[0].link == Link::Relu || stage.links[0].link == Link::ClipSS;
}

Bounds bounds_of_tiles(const Program& program, const Stage& stage, const void* const* inputs) {
  ChainLink link{};
  links_of_tiles(program, stage, inputs, 0, &link);
  if (link.link == Link::Relu) return {true, 0.0f, std::numeric_limits<float>::infinity()};
  return {true, *static_cast<const float*>(link.operand), *static_cast<const float*>(link.operand2)};
}

size_t links_of_tiles(const Program& program, const Stage& stage, const void* const* inputs, int64_t first,
                      ChainLink* links) {
  const auto operand = [&](uint16_t index) {
    const Slot& slot = stage.slots[index];
    if (const uint64_t* constant = constant_of(program, stage, slot)) return static_cast<const void*>(constant);
    const int64_t offset = slot.access == Access::Whole ? first * slot.size : 0;
    return static_cast<const void*>(static_cast<const char*>(inputs[slot.index]) + slot.offset + offset);
  };
  for (const PlannedLink& planned : stage.links) {
    const int reads = link_reads(planned.link);
    *links++ = {planned.link, reads > 0 ? const_cast<void*>(operand(planned.slot)) : nullptr,
                reads > 1 ? operand(planned.slot2) : nullptr};
  }
  return stage.links.size();
}

void run_plan(const Program& program, const Plan& plan, const Tensors& tensors, const Host& host) {
  for (const Stage& stage : plan.stages) {
    const double work = static_cast<double>(stage.tiles) * stage.tile_cost;
    const int64_t chunks = parts_of(work, stage.tiles);
    // The first chunk is longer, for it runs while other threads are yet to begin.  The rest is spread evenly: hosts give a
    // thread neighbouring chunks.
    const double longest = static_cast<double>(stage.tiles) / static_cast<double>(2 * chunks);
    const auto lead = static_cast<int64_t>(std::min(host.lead_nanoseconds / stage.tile_cost, longest));
    const int64_t rest = stage.tiles - lead;
    const auto boundary = [&](int64_t i) { return i == 0 ? 0 : lead + rest / chunks * i + rest % chunks * i / chunks; };
    const bool backward = stage.turns && turn();
    const int64_t own = parts_of_thread(chunks);
    run_parts(host, chunks, [&](int64_t part) {
      // Each thread has the same elements as forward, for they are in its own cache.
      const int64_t i = backward && part < chunks / own * own ? part / own * own + own - 1 - part % own : part;
      run_tiles(program, stage, tensors, boundary(i), boundary(i + 1), backward);
    });
  }
}

}  // namespace onnxfuse
