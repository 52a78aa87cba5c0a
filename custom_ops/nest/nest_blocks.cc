#include "nest/nest_blocks.h"

#include <algorithm>
#include <climits>
#include <utility>

#include "figures/nest.h"
#include "kernels/kernels.h"
#include "nest/nest_layout.h"
#include "nest/nest_plan.h"
#include "nest/row_passes.h"
#include "plan/cost.h"
#include "platform/cache_lines.h"
#include "platform/caches.h"
#include "platform/integers.h"
#include "program/program_shapes.h"
#include "runtime/executor.h"

namespace onnxfuse {
namespace {

// Shorter rows are computed many at a time; those of whole vectors, of which chains take one value for each row, up to a greater
// length, and where the first phase only reduces an input, still longer.
constexpr int64_t kShortestGrouped = 33;
constexpr int64_t kShortestWhole = 64;
constexpr int64_t kShortestReduced = 128;

// Chains over rows fetch from so many times the size of the level 2 cache on: less is there, or near.
constexpr size_t kNearTimes = 4;

// The phase of what no phase keeps.
constexpr int kNever = INT_MAX;

// Whether a value has one element for each result.
bool is_result(const Program& program, const Shape& shape) {
  return std::all_of(program.axes.begin(), program.axes.end(), [&](int axis) { return shape.from_back(-1 - axis) == 1; });
}

class BlockPlanner {
 public:
  BlockPlanner(const NestShapes& shapes, const Phases& phases, const std::vector<BlockPlace>& before, NestBlocks* blocks)
      : program_(shapes.program),
        inputs_(shapes.inputs),
        shapes_(shapes.values),
        phases_(phases),
        before_(values_before(shapes, phases)),
        places_(before),
        blocks_(*blocks) {
    places_.resize(program_.values.size());
  }

  bool make(const Shape& space) {
    space_ = space;
    if (!fits()) return false;
    find_inputs();
    if (can_group()) {
      NestBlocks before = blocks_;
      const std::vector<BlockPlace> places = places_;
      grouped_ = true;
      find_kinds();
      if (lay_out() && plan_phases()) return true;
      grouped_ = false;
      blocks_ = std::move(before);
      places_ = places;
    }
    find_kinds();
    for (const bool again : {false, true}) {
      again_ = again;
      if (lay_out()) return plan_phases();
    }
    return false;
  }

 private:
  // Whether rows may go through all phases in groups, if what these compute is such (group_rows).
  bool can_group() const {
    const NestGeometry& geometry = blocks_.geometry;
    const bool rows = !geometry.by_columns && geometry.segments.empty();
    return rows && geometry.run >= shortest_grouped();
  }

  int64_t shortest_grouped() const {
    if (blocks_.geometry.run % static_cast<int64_t>(kMaxFloats) != 0) return kShortestGrouped;
    for (size_t id = 0; id < shapes_.size(); ++id) {
      if (is_computed(id) && phases_.phase[id] == 0 && !is_result(id)) return kShortestWhole;
    }
    return kShortestReduced;
  }

  bool needs(size_t id, Value::Kind kind) const { return phases_.is_needed[id] && program_.values[id].kind == kind; }
  bool is_computed(size_t id) const { return needs(id, Value::Kind::Instruction) && !before_[id]; }
  bool is_result(size_t id) const { return onnxfuse::is_result(program_, shapes_[id]); }

  // Whether all that blocks compute is of the rows' shape, or that of their results.
  bool fits() {
    bool any = false;
    for (size_t id = 0; id < shapes_.size(); ++id) {
      const Value& value = program_.values[id];
      if (!needs(id, Value::Kind::Reduction)) continue;
      any = true;
      for (int i = 0; i < operand_count(value); ++i) {
        if (!is_same(shapes_[value.operands[i]], space_)) return false;
      }
    }
    if (!any) return false;
    blocks_.geometry = nest_geometry(space_, program_.axes);
    const NestGeometry& geometry = blocks_.geometry;
    if (geometry.outer.size() > 1 || geometry.segments.size() > 1) return false;
    if (geometry.results() == 0 || geometry.reduced() <= 1) return false;
    Shape results = space_;
    for (const int axis : program_.axes) results.dims[static_cast<size_t>(space_.rank + axis)] = 1;
    for (size_t id = 0; id < shapes_.size(); ++id) {
      if (is_computed(id) && !is_same(shapes_[id], is_result(id) ? results : space_)) return false;
    }
    return true;
  }

  // Inputs that are reduced where they lie.
  void find_inputs() {
    for (size_t i = 0; i < program_.input_count; ++i) {
      int64_t offset = 0;
      const Value& value = program_.values[i];
      if (!is_same(shapes_[i], space_) || !dense_input(value, inputs_[i], &offset)) continue;
      const size_t size = storage_size(value.type);
      places_[i] = {BlockPlace::Kind::Input, i, static_cast<size_t>(offset) * size, size};
    }
  }

  // What is reduced, and so is in memory, from which phase on; and what is computed again where a later phase reads it, for
  // that takes no longer than to store and to read it.
  void find_kinds() {
    stored_.assign(program_.values.size(), kNever);
    cheap_.assign(program_.values.size(), false);
    for (size_t id = 0; id < program_.values.size(); ++id) {
      const Value& value = program_.values[id];
      if (!needs(id, Value::Kind::Reduction)) continue;
      for (int i = 0; i < operand_count(value); ++i) {
        const uint16_t operand = value.operands[i];
        const int phase = is_computed(operand) ? phases_.phase[operand] : phases_.phase[id];
        // Of a group of rows it is reduced in registers.
        if (!grouped_) stored_[operand] = std::min(stored_[operand], phase);
      }
    }
    for (size_t id = 0; id < program_.values.size(); ++id) cheap_[id] = is_cheap(program_.values[id], id);
  }

  bool is_cheap(const Value& value, size_t id) const {
    if (!is_computed(id) || cost_of(value.op, compute_type(value.op_type)) > kCheapNanoseconds) return false;
    int elements = 0;  // operands that are read as elements
    for (int i = 0; i < operand_count(value); ++i) {
      const uint16_t operand = value.operands[i];
      const Value::Kind kind = program_.values[operand].kind;
      if (kind == Value::Kind::Const || is_result(operand)) continue;
      // What an earlier phase computes is kept, for this reads it.
      const bool earlier = grouped_ && phases_.phase[operand] < phases_.phase[id];
      const bool there = kind == Value::Kind::Input || before_[operand] || stored_[operand] != kNever || earlier;
      if (!there) return false;
      ++elements;
    }
    return elements <= 1;
  }

  // The phase that keeps each value: one that is reduced, or that a later phase reads and does not compute again.
  std::vector<int> find_kept() {
    std::vector<int> kept = stored_;
    lasts_.assign(program_.values.size(), false);
    if (again_) return kept;
    std::vector<bool> read_later(program_.values.size());
    for (size_t reader = program_.values.size(); reader-- > 0;) {
      const Value& value = program_.values[reader];
      if (!is_computed(reader)) continue;
      const bool stored = stored_[reader] != kNever;
      const bool computed_again = read_later[reader] && cheap_[reader] && (is_split() || !stored);
      if (read_later[reader] && !computed_again) kept[reader] = phases_.phase[reader];
      lasts_[reader] = read_later[reader] && !computed_again;
      for (int i = 0; i < operand_count(value); ++i) {
        const uint16_t operand = value.operands[i];
        if (!is_computed(operand)) continue;
        if (computed_again || phases_.phase[reader] != phases_.phase[operand]) read_later[operand] = true;
      }
    }
    return kept;
  }

  // What a later phase of a group reads, and is an output, is there.
  void find_kept_outputs() {
    for (size_t o = 0; o < program_.outputs.size(); ++o) {
      const uint16_t id = program_.outputs[o];
      const DType type = program_.values[id].type;
      if (kept_[id] == kNever || places_[id].size != 0 || compute_type(type) != type) continue;
      places_[id] = {BlockPlace::Kind::InPlace, o, 0, storage_size(type)};
    }
  }

  bool is_split() const { return blocks_.part > 0; }

  // Whether what is kept of a value is of all elements of a block, not of a part or group of them that is computed at a time.
  bool lasts(size_t id) const {
    return lasts_[id] || !(is_split() || (blocks_.geometry.by_columns && !again_));
  }

  // Finds what is kept, and how large blocks are.  False if that is too much, and values have to be computed again.
  bool lay_out() {
    blocks_.part = has_long_rows(blocks_.geometry) && !grouped_ ? kRowPart : 0;
    kept_ = find_kept();
    if (grouped_) find_kept_outputs();
    int64_t kept = 0;     // bytes of an element
    int64_t touched = 0;  // likewise, with those of tensors
    for (size_t id = 0; id < program_.values.size(); ++id) {
      if (!phases_.is_needed[id]) continue;
      const bool input = id < program_.input_count;
      if (input && is_same(shapes_[id], space_)) touched += static_cast<int64_t>(storage_size(program_.values[id].type));
      if (is_result(id) || places_[id].size != 0) kept_[id] = kNever;
      if (kept_[id] == kNever) continue;
      if (lasts(id)) kept += static_cast<int64_t>(compute_size(program_.values[id].type));
    }
    for (const uint16_t id : program_.outputs) {
      if (is_same(shapes_[id], space_)) touched += static_cast<int64_t>(storage_size(program_.values[id].type));
    }
    return lay_out_blocks({kept, std::max<int64_t>(touched + kept, 1), grouped_, again_, reads_once()}, &blocks_, &kept_elements_);
  }

  // Whether all that is computed of elements is of the first phase.
  bool reads_once() const {
    for (size_t id = 0; id < program_.values.size(); ++id) {
      const bool of_elements = needs(id, Value::Kind::Reduction) || (is_computed(id) && !is_result(id));
      if (of_elements && phases_.phase[id] > 0) return false;
    }
    return true;
  }

  size_t place(size_t elements, size_t size, size_t* bytes) {
    const size_t at = *bytes;
    *bytes += round_up(elements * size, kCacheLine);
    return at;
  }

  int64_t results_of_block() const {
    return blocks_.geometry.by_columns ? blocks_.block_columns : blocks_.block_rows;
  }

  bool plan_phases() {
    for (size_t id = 0; id < kept_.size(); ++id) {
      if (kept_[id] == kNever) continue;
      const size_t size = compute_size(program_.values[id].type);
      const int64_t rows = is_split() ? blocks_.part : blocks_.group;
      const int64_t part = blocks_.geometry.by_columns ? rows * blocks_.block_columns : rows;
      places_[id] = {lasts(id) ? BlockPlace::Kind::Kept : BlockPlace::Kind::Part,
                     place(static_cast<size_t>(lasts(id) ? kept_elements_ : part), size, &blocks_.kept_bytes), 0, size};
    }
    for (size_t o = 0; o < program_.outputs.size(); ++o) {
      const uint16_t id = program_.outputs[o];
      const Value& value = program_.values[id];
      const size_t size = storage_size(value.type);
      const bool result = needs(id, Value::Kind::Reduction) || (is_computed(id) && is_result(id));
      if (result && places_[id].size == 0 && compute_type(value.type) == value.type) {
        places_[id] = {BlockPlace::Kind::Output, o, 0, size};
      }
    }
    for (size_t id = 0; id < program_.values.size(); ++id) {
      if (places_[id].size != 0) continue;
      if (!needs(id, Value::Kind::Reduction) && !(is_computed(id) && is_result(id) && is_read_outside(id))) continue;
      const size_t size = compute_size(program_.values[id].type);
      const size_t at = place(static_cast<size_t>(results_of_block()), size, &blocks_.result_bytes);
      places_[id] = {BlockPlace::Kind::Result, at, 0, size};
    }
    double work = 0;
    for (int phase = 0; phase < phases_.count; ++phase) {
      BlockPhase made;
      if (!plan_pass(phase, true, &made.results, &work) || !plan_pass(phase, false, &made.elements, &work)) return false;
      plan_reductions(phase, &made);
      work += kNestElementNanoseconds * static_cast<double>(made.reductions.size()) * elements();
      blocks_.phases.push_back(std::move(made));
    }
    const NestShapes shapes{program_, inputs_, shapes_};
    if (!grouped_) {
      join_row_passes(shapes, &blocks_);
    } else if (!group_row_passes(shapes, &blocks_)) {
      return false;
    }
    // One reduction of a tensor as it lies in memory needs no blocks.
    const auto computes = [](const BlockPhase& phase) { return phase.elements.plan != nullptr; };
    size_t reductions = 0;
    for (const BlockPhase& phase : blocks_.phases) reductions += phase.reductions.size();
    if (reductions == 1 && std::none_of(blocks_.phases.begin(), blocks_.phases.end(), computes)) return false;
    find_fetched();
    work += kNestBlockNanoseconds * static_cast<double>(blocks_.blocks);
    if (blocks_.shared) {
      blocks_.part_tasks = parts_of(work / static_cast<double>(blocks_.blocks), blocks_.parts);
    } else {
      blocks_.tasks = parts_of(work, blocks_.blocks);
    }
    return true;
  }

  int64_t pass_count() const {
    return std::count_if(blocks_.phases.begin(), blocks_.phases.end(), [](const BlockPhase& phase) {
      return phase.elements.plan != nullptr || !phase.reductions.empty();
    });
  }

  // What is fetched while the block before is computed, a little before each pass over elements and each reduction, or part.
  void find_fetched() {
    int64_t moments = 0;
    for (const BlockPhase& phase : blocks_.phases) {
      moments += static_cast<int64_t>(phase.reductions.size()) + (phase.elements.plan != nullptr ? 1 : 0);
    }
    size_t bytes = 0;
    for (size_t i = 0; i < program_.input_count; ++i) {
      if (!phases_.is_needed[i] || places_[i].kind != BlockPlace::Kind::Input || places_[i].size == 0) continue;
      blocks_.fetched.push_back(places_[i]);
      bytes += places_[i].size * static_cast<size_t>(elements());
    }
    // What is in the caches, and what does not stay there until it is read, is not.
    const size_t block = bytes / static_cast<size_t>(blocks_.blocks);
    // A group fetches what the next one reads in each chain, or in what only reduces in the place of chains that write past the
    // caches and so keep memory busy themselves.
    int64_t reads = 0;
    for (const BlockPhase& phase : blocks_.phases) {
      const BlockPass& pass = phase.elements;
      blocks_.fetching_chains += pass.is_row_chain && !blocks_.geometry.by_columns ? 1 : 0;
      const bool streams = pass.is_row_chain && pass.plan->stages[0].steps[0].stores == Stores::Streamed;
      reads += streams || (pass.plan == nullptr && phase.reductions.empty()) ? 0 : 1;
    }
    if (grouped_) blocks_.fetching_chains = std::max(blocks_.fetching_chains, reads);
    if (blocks_.fetched.size() > kMostFetched) blocks_.fetching_chains = 0;
    const auto level2 = static_cast<size_t>(level2_bytes());
    const bool near = blocks_.fetching_chains > 0 ? bytes < kNearTimes * level2 : is_in_caches(static_cast<double>(bytes));
    const bool passes = blocks_.group > 0 && reads_once();
    if (near || (block > level2 / 2 && !passes)) blocks_.fetched.clear();
    if (is_split()) moments = std::max<int64_t>(pass_count(), 1);
    if (grouped_) return;
    blocks_.fetched_at_once = round_up(divide_up(kept_elements_, std::max<int64_t>(moments, 1)), int64_t{16});
    if (blocks_.group > 0) {
      const int64_t segments = blocks_.geometry.segment_count;
      blocks_.fetched_at_once = passes ? 0 : divide_up(segments, pass_count() * divide_up(segments, blocks_.group));
    }
  }

  double elements() const { return elements_of(blocks_.geometry); }

  void plan_reductions(int phase, BlockPhase* made) {
    size_t partials = 0;
    for (size_t id = 0; id < program_.values.size(); ++id) {
      const Value& value = program_.values[id];
      if (!needs(id, Value::Kind::Reduction) || phases_.phase[id] != phase) continue;
      BlockReduction one;
      one.value = static_cast<uint16_t>(id);
      one.map = value.map;
      one.reduce = value.reduce;
      one.type = compute_type(value.type);
      one.kernels = kernels().find_reduction(info(value.reduce).combine, one.type, value.map);
      one.in = places_[value.operands[0]];
      one.out = places_[id];
      made->reductions.push_back(one);
      const int64_t segments = blocks_.geometry.by_columns ? 0 : blocks_.geometry.segment_count;
      const auto parts = static_cast<size_t>(std::max(blocks_.parts, segments));
      place(parts * static_cast<size_t>(results_of_block()), one.out.size, &partials);
    }
    blocks_.partial_bytes = std::max(blocks_.partial_bytes, partials);
  }

  // What a phase computes of results, or of elements.
  bool plan_pass(int phase, bool of_results, BlockPass* pass, double* work) {
    std::vector<PartResult> results;
    for (size_t o = 0; o < program_.outputs.size(); ++o) {
      const uint16_t id = program_.outputs[o];
      const bool reduced = needs(id, Value::Kind::Reduction);
      if (!reduced && !is_computed(id)) continue;  // that is done before
      const int when = reduced ? phases_.earliest[id] : phases_.phase[id];
      const bool there = reduced && places_[id].kind == BlockPlace::Kind::Output && places_[id].at == o;
      if (when == phase && is_result(id) == of_results && !there) results.push_back({id, static_cast<int>(o)});
    }
    const size_t outputs = results.size();
    for (size_t id = 0; id < program_.values.size(); ++id) {
      if (is_computed(id) && is_result(id) && of_results && phases_.phase[id] == phase) {
        if (places_[id].kind == BlockPlace::Kind::Result) results.push_back({static_cast<uint16_t>(id), -1});
      }
      if (of_results) continue;
      if (kept_[id] == phase || is_reduced_alone(id, phase, results)) results.push_back({static_cast<uint16_t>(id), -1});
    }
    if (results.empty()) return true;
    const std::vector<bool> computes = computed_in(phase, of_results, results);
    pass->part = take_part(program_, shapes_, inputs_, computes, results);
    std::vector<Shape> shapes;
    for (const PartResult& result : results) {
      shapes.push_back(shapes_[result.value]);
      const size_t size = storage_size(program_.values[result.value].type);
      const BlockPlace output{BlockPlace::Kind::Output, static_cast<size_t>(result.output), 0, size};
      pass->outputs.push_back(result.output < 0 ? places_[result.value] : output);
    }
    for (const uint16_t id : pass->part.sources) {
      const bool input = program_.values[id].kind == Value::Kind::Input;
      pass->inputs.push_back(input ? BlockPlace{BlockPlace::Kind::Input, id, 0, 1} : places_[id]);
    }
    PlanKey key;
    key.shapes = pass->part.tensors;
    key.anywhere = true;
    key.multiple = of_results ? 1 : multiple();
    // An output that is read again stays in the caches.
    const auto is_read = [&](const PartResult& one) { return places_[one.value].kind == BlockPlace::Kind::InPlace; };
    key.buffers = grouped_ && std::any_of(results.begin(), results.end(), is_read) ? 0 : outputs;
    std::string error;
    pass->plan = make_plan(pass->part.program, key, pass->part.shapes, shapes, &error);
    if (pass->plan == nullptr || pass->plan->stages.size() != 1 || pass->plan->scratch_bytes != 0) return false;
    const Stage& stage = pass->plan->stages[0];
    *work += stage.tile_cost * static_cast<double>(stage.tiles);
    const size_t tensors = pass->inputs.size() + pass->outputs.size();
    pass->pointers = place(tensors + 1, sizeof(void*) + sizeof(MovedTensor), &blocks_.runner_bytes);
    pass->runner = place(runner_bytes(stage), 1, &blocks_.runner_bytes);
    return true;
  }

  // Whether others than what is computed of results in the same phase read a result.
  bool is_read_outside(size_t id) const {
    for (size_t reader = id + 1; reader < program_.values.size(); ++reader) {
      const Value& value = program_.values[reader];
      if (!is_computed(reader) || (is_result(reader) && phases_.phase[reader] == phases_.phase[id])) continue;
      if (std::count(value.operands, value.operands + operand_count(value), id) > 0) return true;
    }
    return false;
  }

  // Whether a phase computes a value for reductions alone, which take it from registers.
  bool is_reduced_alone(size_t id, int phase, const std::vector<PartResult>& outputs) const {
    if (!grouped_ || !is_computed(id) || is_result(id) || kept_[id] != kNever) return false;
    if (std::any_of(outputs.begin(), outputs.end(), [&](const PartResult& one) { return one.value == id; })) return false;
    for (size_t reader = id; reader < program_.values.size(); ++reader) {
      const Value& value = program_.values[reader];
      if (!needs(reader, Value::Kind::Reduction) || phases_.phase[reader] != phase) continue;
      if (std::count(value.operands, value.operands + operand_count(value), id) > 0) return true;
    }
    return false;
  }

  // Runs of elements begin at multiples of this.
  int64_t multiple() const {
    const NestGeometry& geometry = blocks_.geometry;
    if (geometry.by_columns) {
      return blocks_.block_columns == geometry.columns ? geometry.columns : 1;
    }
    return geometry.segments.empty() && blocks_.part == 0 ? geometry.run : 1;
  }

  // Instructions of the phase, and where values are not kept those that its results need of others.
  std::vector<bool> computed_in(int phase, bool of_results, const std::vector<PartResult>& results) const {
    std::vector<bool> computes(program_.values.size());
    const auto can = [&](size_t id) {
      if (!is_computed(id) || is_result(id) != of_results) return false;
      const bool is_there = kept_[id] != kNever && lasts_[id];
      return phases_.phase[id] == phase || (!of_results && (again_ || (cheap_[id] && !is_there)));
    };
    for (const PartResult& result : results) computes[result.value] = can(result.value);
    for (size_t id = program_.values.size(); id-- > 0;) {
      if (!computes[id]) continue;
      const Value& value = program_.values[id];
      for (int i = 0; i < operand_count(value); ++i) {
        if (can(value.operands[i])) computes[value.operands[i]] = true;
      }
    }
    return computes;
  }

  const Program& program_;
  const std::vector<Shape>& inputs_;
  const std::vector<Shape>& shapes_;
  const Phases& phases_;
  const std::vector<bool> before_;
  std::vector<BlockPlace> places_;
  NestBlocks& blocks_;
  Shape space_;
  bool grouped_ = false;  // rows go through phases in groups
  bool again_ = false;  // values are computed again in each phase that reads them
  std::vector<int> stored_;
  std::vector<bool> cheap_;
  std::vector<int> kept_;    // the phase that keeps a value
  std::vector<bool> lasts_;  // of what is kept: for later phases too, not for a part alone
  int64_t kept_elements_ = 0;
};

}  // namespace

bool plan_blocks(const NestShapes& shapes, const Phases& phases, const std::vector<BlockPlace>& before,
                 NestBlocks* blocks) {
  Shape space;
  return find_space(shapes, phases, &space) && BlockPlanner(shapes, phases, before, blocks).make(space);
}

}  // namespace onnxfuse
