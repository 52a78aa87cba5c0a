// Runs blocks of a Program that reduces (nest_blocks.h).
#include <algorithm>

#include "nest/block_fetch.h"
#include "nest/nest_blocks.h"
#include "nest/nest_layout.h"
#include "platform/cache_lines.h"
#include "platform/integers.h"
#include "runtime/executor.h"
#include "runtime/parts.h"
#include "runtime/row_chain.h"
#include "runtime/workspace.h"

namespace onnxfuse {
namespace {

// Of columns that one chain makes, so many rows are joined one after the other before they are joined with all before.
constexpr int64_t kChainedColumnRows = 32;

// One thread's view of blocks: the memory that they work in.
class BlockRunner {
 public:
  BlockRunner(const NestBlocks& blocks, const void* const* inputs, void* const* outputs, char* scratch, char* memory,
              char* results, char* partials)
      : blocks_(blocks),
        geometry_(blocks.geometry),
        inputs_(inputs),
        outputs_(outputs),
        scratch_(scratch),
        memory_(memory),
        kept_(memory + blocks.runner_bytes),
        results_(results),
        partials_(partials),
        fetch_(blocks, inputs) {
    for (const BlockPhase& phase : blocks.phases) {
      prepare(phase.results);
      prepare(phase.elements);
    }
  }

  // While a block is computed, the memory of the `next` is fetched.
  void run_block(int64_t block, int64_t next) {
    const Region region = region_of(block);
    if (blocks_.group_rows > 0) return run_row_groups(region);
    fetch_.begin(next);
    if (blocks_.part > 0) {
      for (const BlockPhase& phase : blocks_.phases) {
        compute_results(phase, region);
        if (phase.elements.plan == nullptr && phase.reductions.empty()) continue;
        run_parts(phase, block, 0, blocks_.parts);
        join_parts(phase, block);
      }
      return;
    }
    for (const BlockPhase& phase : blocks_.phases) {
      compute_results(phase, region);
      if (blocks_.group > 0) {
        run_groups(phase, region);
        continue;
      }
      if (phase.elements.plan != nullptr) {
        fetch_.some();
        const auto out = [&](size_t i) { return i < phase.elements.joined ? address(phase.reductions[i].out, region) : nullptr; };
        const int64_t run = phase.elements.run_in_row;
        compute_elements(phase, region, run > 0 ? region.length / run : region.results, out(0), out(1));
      }
      for (size_t i = 0; i < phase.reductions.size(); ++i) {
        fetch_.some();
        if (i < phase.elements.joined) {
          finish(phase.reductions[i], region);
        } else {
          reduce(phase.reductions[i], region);
        }
      }
    }
  }

  // All phases of some rows, and then of as many again.
  void run_row_groups(const Region& region) {
    auto* const passes = reinterpret_cast<RowPass*>(memory_ + blocks_.row_memory);
    auto* links = reinterpret_cast<ChainLink*>(passes + blocks_.row_passes);
    auto* steps = reinterpret_cast<OperandSteps*>(links + blocks_.row_links);
    RowPass* end = passes;
    const auto add = [&](const BlockPass& pass, const Step& step, const std::vector<RowOperand>& operands, int64_t first) {
      const auto* const tensors = reinterpret_cast<const void* const*>(memory_ + pass.pointers);
      *end = {};
      place_row_pass(pass.plan->stages[0], step, operands, {tensors, first, region.first_result, 0}, end, links, steps);
      links += step.count;
      steps += step.count;
      return end++;
    };
    for (const BlockPhase& phase : blocks_.phases) {
      if (phase.results.plan != nullptr) {
        place_tensors(phase.results, {region.first_result, region.results, 0, 1, region.first_result, region.results});
        reinterpret_cast<void**>(memory_ + phase.results.pointers)[tensor_count(phase.results)] = memory_ + phase.results.buffer;
        const std::vector<Step>& values = phase.results.plan->stages[0].steps;
        for (size_t i = 0; i < values.size(); ++i) {
          add(phase.results, values[i], phase.results.value_operands[i], region.first_result)->of_values = true;
        }
      }
      const BlockPass& elements = phase.elements;
      RowPass* pass = nullptr;
      if (elements.plan != nullptr) {
        place_tensors(elements, region);
        pass = add(elements, elements.plan->stages[0].steps[0], elements.row_operands, region.first);
        if (!elements.stores) pass->out = nullptr;
      } else if (!phase.reductions.empty()) {
        *end = {};
        pass = end++;
        pass->in = reinterpret_cast<const float*>(address(phase.reductions[0].in, region));
        pass->in_step = geometry_.run * static_cast<int64_t>(sizeof(float));
      }
      for (const BlockReduction& one : phase.reductions) reduce_in(pass, one, phase.reductions.size() > 1, region);
    }
    const int64_t group_elements = blocks_.group_rows * geometry_.run;
    fetch_.set_ranges(region.first + group_elements, group_elements);
    const auto group = static_cast<size_t>(blocks_.group_rows);
    kernels().chain_rows({passes, static_cast<size_t>(end - passes), static_cast<size_t>(region.results), group,
                          static_cast<size_t>(geometry_.run), fetch_.ranges(), fetch_.range_count()});
  }

  // What a pass makes of rows comes to, alone or beside another sum.
  void reduce_in(RowPass* pass, const BlockReduction& one, bool beside, const Region& region) {
    auto* const results = reinterpret_cast<float*>(address(one.out, region));
    const bool mean = one.reduce == Reduce::ReduceMean;
    if (beside && one.map == Mapped::Square) {
      pass->squares = results;
      pass->mean_squares = mean;
      return;
    }
    pass->combine = info(one.reduce).combine;
    pass->map = one.map;
    pass->results = results;
    pass->mean = mean;
  }

  // Elements of columns, some rows at a time: what is made of these is reduced while it is in the level 1 cache.
  void run_groups(const BlockPhase& phase, const Region& columns) {
    if (phase.elements.plan == nullptr && phase.reductions.empty()) return;
    const int64_t segments = geometry_.segment_count;
    if (phase.elements.is_row_chain) return run_column_chain(phase, columns);
    for (int64_t row = 0; row < segments; row += blocks_.group) {
      const Region region = rows_of(columns, row, std::min(blocks_.group, segments - row));
      before_ = row * columns.results;
      fetch_.rows(columns, row);
      if (phase.elements.plan != nullptr) compute_elements(phase, region, region.results, nullptr, nullptr);
      for (const BlockReduction& one : phase.reductions) reduce_to(one, region, address(one.out, region), row == 0);
    }
    before_ = 0;
    for (const BlockReduction& one : phase.reductions) finish(one, columns);
  }

  // The same where what is made of them is one chain, whose results are joined as it leaves them in registers.  In two steps, so
  // that sums of many rows are as exact as those of four at a time.
  void run_column_chain(const BlockPhase& phase, const Region& columns) {
    const BlockPass& elements = phase.elements;
    const BlockReduction& one = phase.reductions[0];
    const Op combine = info(one.reduce).combine;
    const auto n = static_cast<size_t>(columns.results);
    const ReduceKernels joins = kernels().find_reduction(combine, one.type, Mapped::Plain);
    const Stage& stage = elements.plan->stages[0];
    const auto* const tensors = reinterpret_cast<const void* const*>(memory_ + elements.pointers);
    ChainLink links[kMaxChainLinks];
    OperandSteps steps[kMaxChainLinks];
    for (int64_t row = 0; row < geometry_.segment_count; row += kChainedColumnRows) {
      const Region region = rows_of(columns, row, std::min(kChainedColumnRows, geometry_.segment_count - row));
      place_tensors(elements, region);
      RowPass pass{};
      place_row_pass(stage, stage.steps[0], elements.row_operands, {tensors, region.first, region.first / geometry_.columns, 0},
                     &pass, links, steps);
      pass.out = nullptr;
      pass.combine = combine;
      pass.map = one.map;
      pass.columns = reinterpret_cast<float*>(address(one.in, region));
      const auto rows = static_cast<size_t>(region.length * region.count) / n;
      kernels().chain_rows({&pass, 1, rows, rows, n, nullptr, 0});
      joins.columns({pass.columns, 1, n, n, address(one.out, region), row == 0});
    }
    finish(one, columns);
  }

  void compute_results(const BlockPhase& phase, const Region& region) {
    if (phase.results.plan == nullptr) return;
    compute(phase.results, {region.first_result, region.results, 0, 1, region.first_result, region.results});
  }

  // The elements of some parts of a block, and what each comes to.
  void run_parts(const BlockPhase& phase, int64_t block, int64_t first, int64_t end) {
    const Region whole = region_of(block);
    block_first_ = whole.first;
    if (const int64_t run = phase.elements.run_in_row; run > 0) {
      return compute_elements(phase, whole, whole.length / run, nullptr, nullptr);
    }
    for (int64_t part = first; part < end;) {
      // To a chain over rows, parts of the same length are rows that lie one after the other.
      const int64_t alike = phase.parts_are_rows ? whole.length / blocks_.part - part : 1;
      const int64_t count = std::clamp<int64_t>(alike, 1, end - part);
      Region region = part_of(whole, part);
      region.length *= count;
      fetch_.some();
      run_part(phase, region, part, count);
      part += count;
    }
  }

  // `count` parts from `part` on, which `region` has together.
  void run_part(const BlockPhase& phase, const Region& region, int64_t part, int64_t count) {
    const size_t joined = phase.elements.joined;
    char* out[2] = {nullptr, nullptr};  // of what is joined
    char* partials = partials_;
    const auto next = [&](const BlockReduction& one) {
      char* const at = partials + static_cast<size_t>(part) * static_cast<size_t>(region.results) * one.out.size;
      partials += partials_of(one);
      return at;
    };
    for (size_t i = 0; i < joined; ++i) out[i] = next(phase.reductions[i]);
    if (phase.elements.plan != nullptr) compute_elements(phase, region, count, out[0], out[1]);
    for (size_t i = joined; i < phase.reductions.size(); ++i) reduce_to(phase.reductions[i], region, next(phase.reductions[i]));
  }

  // What the parts of a block come to together.
  void join_parts(const BlockPhase& phase, int64_t block) {
    const Region region = region_of(block);
    const char* partials = partials_;
    for (const BlockReduction& one : phase.reductions) {
      join(one, partials, blocks_.parts, region.results, address(one.out, region));
      finish(one, region);
      partials += partials_of(one);
    }
  }

  Region region_of(int64_t block) const { return onnxfuse::region_of(blocks_, block); }

 private:
  void prepare(const BlockPass& pass) {
    if (pass.plan == nullptr || pass.is_row_chain || blocks_.group_rows > 0) return;
    auto** const pointers = reinterpret_cast<const void**>(memory_ + pass.pointers);
    std::fill_n(pointers, pass.inputs.size() + pass.outputs.size(), memory_);
    auto** const written = const_cast<void**>(pointers + pass.inputs.size());
    make_runner(pass.part.program, pass.plan->stages[0], {pointers, written, nullptr}, memory_ + pass.runner);
  }

  Region part_of(const Region& region, int64_t part) const { return onnxfuse::part_of(blocks_, region, part); }
  Region rows_of(const Region& columns, int64_t first, int64_t count) const {
    return onnxfuse::rows_of(blocks_, columns, first, count);
  }

  static size_t tensor_count(const BlockPass& pass) { return pass.inputs.size() + pass.outputs.size(); }

  static bool is_buffer(const BlockPlace& place) {
    return place.kind == BlockPlace::Kind::Kept || place.kind == BlockPlace::Kind::Part;
  }

  // Where a place has what element, or result, `first` of the region is.
  char* address(const BlockPlace& place, const Region& region) const {
    switch (place.kind) {
      case BlockPlace::Kind::Input:
        return static_cast<char*>(const_cast<void*>(inputs_[place.at])) + place.offset +
               static_cast<size_t>(region.first) * place.size;
      case BlockPlace::Kind::InPlace:
        return static_cast<char*>(outputs_[place.at]) + static_cast<size_t>(region.first) * place.size;
      case BlockPlace::Kind::Output:
        return static_cast<char*>(outputs_[place.at]) + static_cast<size_t>(region.first_result) * place.size;
      case BlockPlace::Kind::Scratch:
        return scratch_ + place.at;
      case BlockPlace::Kind::Kept:
        if (blocks_.part > 0) return kept_ + place.at + static_cast<size_t>(region.first - block_first_) * place.size;
        return kept_ + place.at + static_cast<size_t>(before_) * place.size;
      case BlockPlace::Kind::Part:
        return kept_ + place.at;
      default:
        return results_ + place.at;
    }
  }

  // What `count` rows of elements, or parts of one, come to goes to `results`, where the pass reduces them.
  void compute_elements(const BlockPhase& phase, const Region& region, int64_t count, char* results, char* squares) {
    const BlockPass& pass = phase.elements;
    if (!pass.is_row_chain) return compute(pass, region);
    place_tensors(pass, region);
    // What operands move on by is of the chain's rows, which are runs of a row where it has several.
    const bool parts = blocks_.part > 0 && pass.run_in_row == 0;
    const int64_t row = region.first / (pass.run_in_row > 0 ? pass.run_in_row : geometry_.run);
    RowReduction rows{region.first, row, count, region.length / count, parts,
                      Op::Add, Mapped::Plain, pass.stores, nullptr, nullptr, fetch_.ranges(), fetch_.range_count()};
    if (pass.joined > 0) {
      rows.combine = info(phase.reductions[0].reduce).combine;
      rows.map = phase.reductions[0].map;
      rows.results = reinterpret_cast<float*>(results);
      rows.squares = reinterpret_cast<float*>(squares);
    }
    const auto* const tensors = reinterpret_cast<const void* const*>(memory_ + pass.pointers);
    run_row_chain(pass.part.program, pass.plan->stages[0], pass.row_operands, tensors, pass.inputs.size(), rows);
  }

  void compute(const BlockPass& pass, const Region& region) {
    ElementRuns runs{region.first, region.length, region.step, region.count};
    runs.moved_count = place_tensors(pass, region);
    runs.moved = reinterpret_cast<MovedTensor*>(memory_ + pass.pointers +
                                                (pass.inputs.size() + pass.outputs.size()) * sizeof(void*));
    run_elements(reinterpret_cast<ElementRunner*>(memory_ + pass.runner), runs);
  }

  // Sets the pointers to the tensors of a pass; returns how many of these move on from run to run.
  size_t place_tensors(const BlockPass& pass, const Region& region) {
    const auto** const pointers = reinterpret_cast<const void**>(memory_ + pass.pointers);
    const size_t reads = pass.inputs.size();
    const size_t count = reads + pass.outputs.size();
    auto* const moved = reinterpret_cast<MovedTensor*>(pointers + count);
    size_t moved_count = 0;
    for (size_t i = 0; i < count; ++i) {
      const BlockPlace& place = i < reads ? pass.inputs[i] : pass.outputs[i - reads];
      switch (place.kind) {
        case BlockPlace::Kind::Input:
          pointers[i] = inputs_[place.at];
          break;
        case BlockPlace::Kind::Output:
        case BlockPlace::Kind::InPlace:
          pointers[i] = outputs_[place.at];
          break;
        case BlockPlace::Kind::Scratch:
          pointers[i] = scratch_ + place.at;
          break;
        case BlockPlace::Kind::Kept:
        case BlockPlace::Kind::Part:
          pointers[i] = whole_tensor(address(place, region), region.first, place.size);
          moved[moved_count++] = {pointers + i, (region.length - region.step) * static_cast<int64_t>(place.size)};
          break;
        case BlockPlace::Kind::Result:
          pointers[i] = whole_tensor(results_ + place.at, region.first_result, place.size);
          break;
      }
    }
    return moved_count;
  }

  void reduce(const BlockReduction& one, const Region& region) {
    char* const out = address(one.out, region);
    const bool gaps = !geometry_.by_columns && region.count > 1 && !is_buffer(one.in);
    reduce_to(one, region, gaps ? partials_ : out);
    if (gaps) join(one, partials_, region.count, 1, out);
    finish(one, region);
  }

  // The results of a region; where its rows have gaps in memory, a result for each run.
  void reduce_to(const BlockReduction& one, const Region& region, char* out, bool begins = true) {
    const char* const in = address(one.in, region);
    const bool kept = is_buffer(one.in);
    const auto results = static_cast<size_t>(region.results);
    const int64_t elements = region.length * region.count;
    if (geometry_.by_columns) {
      const int64_t rows = elements / region.results;
      const int64_t pitch = kept ? region.results : geometry_.segments[0].stride;
      one.kernels.columns({in, static_cast<size_t>(rows), static_cast<size_t>(pitch), results, out, begins});
    } else if (region.count > 1 && !kept) {
      const auto pitch = static_cast<size_t>(region.step);
      one.kernels.rows({in, static_cast<size_t>(region.count), pitch, static_cast<size_t>(region.length), out});
    } else {
      const auto n = static_cast<size_t>(elements / region.results);
      one.kernels.rows({in, results, n, n, out});
    }
  }

  // `columns` results, of as many in each of `parts`.
  void join(const BlockReduction& one, const char* partials, int64_t parts, int64_t columns, char* out) const {
    const ReduceKernels joins = kernels().find_reduction(info(one.reduce).combine, one.type, Mapped::Plain);
    const auto count = static_cast<size_t>(parts);
    const auto n = static_cast<size_t>(columns);
    if (geometry_.by_columns) {
      joins.columns({partials, count, n, n, out, true});
    } else {
      joins.rows({partials, 1, count, count, out});
    }
  }

  void finish(const BlockReduction& one, const Region& region) const {
    finish_reduction(one.reduce, one.type, geometry_.reduced(), address(one.out, region), region.results);
  }

  // Bytes of the partial results of a reduction.
  size_t partials_of(const BlockReduction& one) const {
    const int64_t results = geometry_.by_columns ? blocks_.block_columns : 1;
    return round_up(static_cast<size_t>(blocks_.parts * results) * one.out.size, kCacheLine);
  }

  const NestBlocks& blocks_;
  const NestGeometry& geometry_;
  const void* const* const inputs_;
  void* const* const outputs_;
  char* const scratch_;
  char* const memory_;  // what runs passes, and then what blocks keep
  char* const kept_;
  char* const results_;
  char* const partials_;
  BlockFetch fetch_;
  int64_t before_ = 0;  // elements of the block before the group that is computed
  int64_t block_first_ = 0;  // the first element of the block whose parts are computed
};

}  // namespace

void run_blocks(const NestBlocks& blocks, const void* const* inputs, void* const* outputs, char* scratch,
                const Host& host) {
  const size_t own = blocks.runner_bytes + blocks.kept_bytes;
  if (!blocks.shared) {
    run_parts(host, blocks.tasks, [&](int64_t task) {
      const Workspace memory(own + blocks.result_bytes + blocks.partial_bytes);
      auto* const begin = static_cast<char*>(memory.data());
      char* const results = begin + own;
      BlockRunner run(blocks, inputs, outputs, scratch, begin, results, results + blocks.result_bytes);
      const int64_t end = (task + 1) * blocks.blocks / blocks.tasks;
      for (int64_t block = task * blocks.blocks / blocks.tasks; block < end; ++block) {
        run.run_block(block, block + 1 < end ? block + 1 : -1);
      }
    });
    return;
  }
  const Workspace shared(blocks.runner_bytes + blocks.result_bytes + blocks.partial_bytes);
  auto* const begin = static_cast<char*>(shared.data());
  char* const results = begin + blocks.runner_bytes;
  char* const partials = results + blocks.result_bytes;
  for (int64_t block = 0; block < blocks.blocks; ++block) {
    BlockRunner lead(blocks, inputs, outputs, scratch, begin, results, partials);  // which keeps no elements
    for (const BlockPhase& phase : blocks.phases) {
      lead.compute_results(phase, lead.region_of(block));
      if (phase.elements.plan == nullptr && phase.reductions.empty()) continue;
      run_parts(host, blocks.part_tasks, [&](int64_t task) {
        const Workspace memory(own);
        BlockRunner run(blocks, inputs, outputs, scratch, static_cast<char*>(memory.data()), results, partials);
        const int64_t end = (task + 1) * blocks.parts / blocks.part_tasks;
        run.run_parts(phase, block, task * blocks.parts / blocks.part_tasks, end);
      });
      lead.join_parts(phase, block);
    }
  }
}

}  // namespace onnxfuse
