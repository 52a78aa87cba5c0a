#include "nest/row_passes.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "platform/cache_lines.h"
#include "platform/integers.h"
#include "runtime/executor.h"
#include "runtime/row_chain.h"

namespace onnxfuse {
namespace {

// Rows of fewer elements are computed many at a time.
constexpr int64_t kShortestChain = 128;

class RowPasses {
 public:
  RowPasses(const NestShapes& shapes, NestBlocks* blocks)
      : program_(shapes.program), shapes_(shapes.values), blocks_(*blocks) {}

  void join() {
    if (blocks_.geometry.run >= kShortestChain) {
      for (BlockPhase& phase : blocks_.phases) chain_rows(&phase);
      for (BlockPhase& phase : blocks_.phases) find_stores(&phase);
    }
    for (size_t at = 0; at < blocks_.phases.size(); ++at) keep_in_output(at);
    for (BlockPhase& phase : blocks_.phases) phase.parts_are_rows = computes_parts_alike(phase);
  }

  // Where a phase does no more than reduce what one chain makes of columns, it takes that from registers.
  void join_columns() {
    if (blocks_.block_columns < kShortestChain) return;
    for (BlockPhase& phase : blocks_.phases) {
      if (phase.reductions.size() != 1) continue;
      const BlockPass before = phase.elements;
      chain_rows(&phase);
      find_stores(&phase);
      BlockPass& pass = phase.elements;
      const auto is_input = [](const BlockPlace& place) { return place.kind == BlockPlace::Kind::Input; };
      const bool reads_inputs = std::all_of(pass.inputs.begin(), pass.inputs.end(), is_input);
      if (!pass.is_row_chain || pass.joined == 0 || pass.stores || !reads_inputs || pass.row_operands.empty()) pass = before;
    }
  }

  bool group() {
    for (BlockPhase& phase : blocks_.phases) {
      chain_rows(&phase);
      if (!plan_values(&phase.results) || !fits_group(phase)) return false;
    }
    for (BlockPhase& phase : blocks_.phases) {
      find_stores(&phase);
      restart(&phase.elements);
      add_passes(phase);
    }
    const size_t links = blocks_.row_links * (sizeof(ChainLink) + sizeof(OperandSteps));
    blocks_.row_memory = blocks_.runner_bytes;
    blocks_.runner_bytes += round_up(blocks_.row_passes * sizeof(RowPass) + links, kCacheLine);
    return true;
  }

 private:
  // Of what is computed of a group's results each step is a chain; false if one is not.
  bool plan_values(BlockPass* pass) {
    if (pass->plan == nullptr) return true;
    const Stage& stage = pass->plan->stages[0];
    if (stage.tile < blocks_.group_rows) return false;
    const size_t tensors = pass->inputs.size() + pass->outputs.size();
    if (!value_operands(pass->part.program, stage, pass->inputs.size(), static_cast<int>(tensors), &pass->value_operands)) {
      return false;
    }
    pass->buffer = blocks_.runner_bytes;
    blocks_.runner_bytes += round_up(stage.buffer_bytes, kCacheLine);
    for (std::vector<RowOperand>& operands : pass->value_operands) {
      for (RowOperand& one : operands) one.restarts = one.tensor == static_cast<int>(tensors);
    }
    return true;
  }

  // Whether a phase does no more with elements than one pass can.
  bool fits_group(const BlockPhase& phase) const {
    const BlockPass& pass = phase.elements;
    const std::vector<BlockReduction>& reductions = phase.reductions;
    if (pass.plan == nullptr) {
      return reductions.empty() || (reductions[0].in.kind == BlockPlace::Kind::Input && join_together(reductions));
    }
    if (!pass.is_row_chain || pass.row_operands.empty()) return false;
    return reductions.empty() || (pass.joined > 0 && join_together(reductions));
  }

  // Whether reductions are of the same elements: one, or a sum and one of squares.
  bool join_together(const std::vector<BlockReduction>& reductions) const {
    const auto fits = [&](const BlockReduction& one) {
      const bool same = program_.values[one.value].operands[0] == program_.values[reductions[0].value].operands[0];
      return one.type == DType::f32 && same;
    };
    if (!std::all_of(reductions.begin(), reductions.end(), fits) || reductions.size() > 2) return false;
    const auto sums = [&](Mapped map) {
      return std::count_if(reductions.begin(), reductions.end(), [map](const BlockReduction& one) {
        return one.map == map && info(one.reduce).combine == Op::Add;
      });
    };
    return reductions.size() == 1 || (sums(Mapped::Plain) == 1 && sums(Mapped::Square) == 1);
  }

  // Of a group's own memory each group has the same.
  static void restart(BlockPass* pass) {
    for (RowOperand& one : pass->row_operands) {
      if (one.tensor < 0) continue;
      const auto tensor = static_cast<size_t>(one.tensor);
      const size_t reads = pass->inputs.size();
      one.restarts = (tensor < reads ? pass->inputs[tensor] : pass->outputs[tensor - reads]).kind == BlockPlace::Kind::Kept;
    }
  }

  void add_passes(const BlockPhase& phase) {
    const auto add = [&](const Step& step) {
      ++blocks_.row_passes;
      blocks_.row_links += step.count;
    };
    if (phase.results.plan != nullptr) {
      for (const Step& step : phase.results.plan->stages[0].steps) add(step);
    }
    if (phase.elements.plan != nullptr) {
      add(phase.elements.plan->stages[0].steps[0]);
    } else if (!phase.reductions.empty()) {
      ++blocks_.row_passes;
    }
  }

  bool reads(const BlockReduction& one, uint16_t id) const {
    const Value& value = program_.values[one.value];
    return std::count(value.operands, value.operands + operand_count(value), id) > 0;
  }

  static bool reads(const BlockPass& pass, uint16_t id) {
    return std::find(pass.part.sources.begin(), pass.part.sources.end(), id) != pass.part.sources.end();
  }

  // What the last step of a pass of one step makes.
  static const PartResult& made_by(const BlockPass& pass) {
    const Stage& stage = pass.plan->stages[0];
    return pass.part.results[stage.slots[stage.steps[0].out].index];
  }

  // The plan of a pass with another key, of one step; null if there is none.
  std::shared_ptr<const Plan> plan_again(const BlockPass& pass, const PlanKey& key) const {
    std::vector<Shape> shapes;
    for (const PartResult& result : pass.part.results) shapes.push_back(shapes_[result.value]);
    std::string error;
    auto plan = make_plan(pass.part.program, key, pass.part.shapes, shapes, &error);
    if (plan == nullptr || plan->stages.size() != 1 || plan->scratch_bytes != 0) return nullptr;
    return plan->stages[0].steps.size() == 1 ? plan : nullptr;
  }

  // What a phase computes last is reduced in registers, where that is one chain; and what else is one, if operands are read
  // where they lie, needs no copies of these.
  void chain_rows(BlockPhase* phase) {
    BlockPass& pass = phase->elements;
    if (pass.plan == nullptr) return;
    PlanKey key = pass.plan->key;
    key.rows = true;
    auto plan = plan_again(pass, key);
    if (plan == nullptr) return;
    if (phase->reductions.empty()) pass.run_in_row = run_in_row(plan->stages[0]);
    const int64_t n = pass.run_in_row > 0 ? pass.run_in_row : row_length();
    if (!is_row_chain(pass.part.program, plan->stages[0], n)) {
      pass.run_in_row = 0;
      return;
    }
    std::swap(pass.plan, plan);
    pass.is_row_chain = true;
    pass.row_operands = row_operands(pass.part.program, pass.plan->stages[0], pass.inputs.size(), n);
    const uint16_t made = made_by(pass).value;
    std::vector<BlockReduction>& reductions = phase->reductions;
    const auto first = std::find_if(reductions.begin(), reductions.end(), [&](const BlockReduction& one) {
      return one.type == DType::f32 && program_.values[one.value].operands[0] == made;
    });
    if (first != reductions.end()) {
      std::rotate(reductions.begin(), first, first + 1);
      const bool both = reductions.size() == 2 && join_together(reductions);
      if (both && reductions[0].map == Mapped::Square) std::swap(reductions[0], reductions[1]);
      pass.joined = both ? 2 : 1;
      return;
    }
    const Stage& before = plan->stages[0];
    const bool simple = before.steps.size() == 1 && before.prologue.empty() && !before.by_rows;
    pass.is_row_chain = !simple || !pass.row_operands.empty();
    if (!pass.is_row_chain) std::swap(pass.plan, plan);
  }

  static bool is_joined(const BlockPhase& phase, const BlockReduction& reduction) {
    const auto end = phase.reductions.begin() + static_cast<ptrdiff_t>(phase.elements.joined);
    return std::any_of(phase.reductions.begin(), end, [&](const BlockReduction& one) { return one.value == reduction.value; });
  }

  int64_t row_length() const { return blocks_.geometry.by_columns ? blocks_.geometry.columns : blocks_.geometry.run; }

  // The elements of runs that a row has several of, all of them alike; else 0.
  int64_t run_in_row(const Stage& stage) const {
    const int64_t run = row_length();
    const bool several = stage.by_rows && stage.columns < run && run % stage.columns == 0;
    return several && stage.columns >= kShortestChain && blocks_.group_rows == 0 && !blocks_.shared ? stage.columns : 0;
  }

  // Whether others read what is reduced in registers.
  void find_stores(BlockPhase* phase) {
    BlockPass& pass = phase->elements;
    if (pass.joined == 0) return;
    const PartResult& made = made_by(pass);
    pass.stores = made.output >= 0;
    for (const BlockPhase& other : blocks_.phases) {
      pass.stores |= reads(other.elements, made.value);
      if (blocks_.group_rows > 0) continue;  // whose reductions are all of registers
      for (const BlockReduction& one : other.reductions) {
        pass.stores |= !is_joined(*phase, one) && reads(one, made.value);
      }
    }
  }

  // Whether all that a phase does is one chain over the rows' elements, in memory that has all of a row.
  static bool computes_parts_alike(const BlockPhase& phase) {
    const BlockPass& pass = phase.elements;
    if (!pass.is_row_chain || phase.reductions.size() > pass.joined) return false;
    const auto is_part = [](const BlockPlace& place) { return place.kind == BlockPlace::Kind::Part; };
    return std::none_of(pass.inputs.begin(), pass.inputs.end(), is_part) &&
           std::none_of(pass.outputs.begin(), pass.outputs.end(), is_part);
  }

  // What is kept until a chain makes an output of it is kept where that will be: a block touches less memory, and the memory of
  // results comes into the caches while what takes longer is computed.
  void keep_in_output(size_t at) {
    BlockPass& pass = blocks_.phases[at].elements;
    if (pass.plan == nullptr || pass.joined > 0) return;
    const Stage& stage = pass.plan->stages[0];
    if (stage.steps.size() != 1 || stage.steps[0].kind != Step::Kind::Chain) return;
    if (stage.steps[0].stores == Stores::Streamed) return;  // past the caches that it would be kept in
    const Slot& out = stage.slots[stage.steps[0].out];
    if (out.place != Place::Output || out.access != Access::Whole || made_by(pass).output < 0) return;
    const BlockPlace place{BlockPlace::Kind::InPlace, static_cast<size_t>(made_by(pass).output), 0, out.size};
    for (size_t i = 0; i < pass.inputs.size(); ++i) {
      const BlockPlace old = pass.inputs[i];
      if (old.kind != BlockPlace::Kind::Kept || old.size != place.size || !reads_in_place(stage, i)) continue;
      if (is_read_from(at, pass.part.sources[i])) continue;
      PlanKey key = pass.plan->key;
      key.aliased = 1;
      auto plan = plan_again(pass, key);
      if (plan == nullptr || (!pass.is_row_chain && runner_bytes(plan->stages[0]) > runner_bytes(stage))) continue;
      pass.plan = std::move(plan);
      if (pass.is_row_chain) {
        pass.row_operands = row_operands(pass.part.program, pass.plan->stages[0], pass.inputs.size(), blocks_.geometry.run);
      }
      return move_place(old, place);
    }
  }

  // Whether a stage reads all of an input, in the order of its elements.
  static bool reads_in_place(const Stage& stage, size_t input) {
    return std::all_of(stage.slots.begin(), stage.slots.end(), [&](const Slot& slot) {
      return slot.place != Place::Input || slot.index != input || slot.access == Access::Whole;
    });
  }

  // Whether a phase from `first` on reduces a value in memory, or a later one reads it.
  bool is_read_from(size_t first, uint16_t id) const {
    for (size_t at = first; at < blocks_.phases.size(); ++at) {
      const BlockPhase& phase = blocks_.phases[at];
      if (at > first && reads(phase.elements, id)) return true;
      for (const BlockReduction& one : phase.reductions) {
        if (reads(one, id)) return true;
      }
    }
    return false;
  }

  void move_place(const BlockPlace& old, const BlockPlace& place) {
    const auto move = [&](BlockPlace* one) {
      if (one->kind == old.kind && one->at == old.at) *one = place;
    };
    for (BlockPhase& phase : blocks_.phases) {
      for (BlockPlace& one : phase.elements.inputs) move(&one);
      for (BlockPlace& one : phase.elements.outputs) move(&one);
      for (BlockReduction& one : phase.reductions) move(&one.in);
    }
  }

  const Program& program_;
  const std::vector<Shape>& shapes_;
  NestBlocks& blocks_;
};

}  // namespace

bool group_row_passes(const NestShapes& shapes, NestBlocks* blocks) { return RowPasses(shapes, blocks).group(); }

void join_row_passes(const NestShapes& shapes, NestBlocks* blocks) {
  const NestGeometry& geometry = blocks->geometry;
  if (!geometry.by_columns && geometry.segments.empty()) RowPasses(shapes, blocks).join();
  if (geometry.by_columns && blocks->group > 0) RowPasses(shapes, blocks).join_columns();
}

}  // namespace onnxfuse
