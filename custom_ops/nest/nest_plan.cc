#include "nest/nest_plan.h"

#include <algorithm>
#include <utility>

#include "figures/programs.h"
#include "nest/simplify_nest.h"
#include "platform/cache_lines.h"
#include "platform/integers.h"
#include "program/program_shapes.h"
#include "runtime/executor.h"

namespace onnxfuse {
bool dense_input(const Value& value, const Shape& tensor, int64_t* offset) {
  if (value.kind != Value::Kind::Input || compute_type(value.type) != value.type || value.swaps_halves) return false;
  View view;
  std::string problem;
  if (!input_view(value, tensor, &view, &problem)) return false;
  int64_t step = 1;
  for (int d = view.shape.rank; d-- > 0; step *= view.shape.dims[static_cast<size_t>(d)]) {
    if (view.shape.dims[static_cast<size_t>(d)] > 1 && view.strides[static_cast<size_t>(d)] != step) return false;
  }
  *offset = view.offset;
  return true;
}

namespace {

// Phases over whole tensors.
class WholePlanner {
 public:
  WholePlanner(const Program& program, const std::vector<Shape>& shapes, const Phases& phases, NestPlan* plan)
      : program_(program), shapes_(shapes), plan_(*plan), phases_(phases), places_(program.values.size()) {}

  // What is computed before blocks; sets `places` to where that is.  False if it cannot.
  bool make_before(const std::vector<bool>& before, std::vector<BlockPlace>* places) {
    std::vector<PartResult> results;
    for (size_t o = 0; o < program_.outputs.size(); ++o) {
      const uint16_t id = program_.outputs[o];
      const bool later = !before[id] && (is_instruction(id) || program_.values[id].kind == Value::Kind::Reduction);
      if (!later) results.push_back({id, static_cast<int>(o)});
    }
    places->assign(program_.values.size(), {});
    std::vector<bool> computes(program_.values.size());
    for (size_t id = 0; id < program_.values.size(); ++id) {
      computes[id] = is_instruction(id) && before[id];
      if (!computes[id] || !is_read_outside(id, before)) continue;
      keep(id);
      (*places)[id] = {BlockPlace::Kind::Scratch, places_[id].place.at, 0, compute_size(program_.values[id].type)};
      results.push_back({static_cast<uint16_t>(id), -1});
    }
    if (results.empty()) return true;
    WholePhase made;
    std::string error;
    if (results.size() > kMaxOutputs || !plan_part(computes, results, &made, &error) || overflow_) return false;
    plan_.phases.push_back(std::move(made));
    return true;
  }

  bool make(std::string* error) {
    find_places();
    for (int phase = 0; phase < phases_.count; ++phase) {
      if (!add_phase(phase, error)) return false;
    }
    return !overflow_ || fail("intermediate values need too much memory", error);
  }

 private:
  struct ValuePlace {
    TensorPlace place;
    bool is_known = false;  // where all of its elements are, in the type that it is computed in
  };

  static bool fail(const char* problem, std::string* error) {
    *error = problem;
    return false;
  }

  bool is_instruction(size_t id) const {
    return phases_.is_needed[id] && program_.values[id].kind == Value::Kind::Instruction;
  }

  size_t scratch(size_t bytes) {
    const size_t at = plan_.scratch_bytes;
    overflow_ |= __builtin_add_overflow(at, round_up(bytes, kCacheLine), &plan_.scratch_bytes);
    return at;
  }

  size_t bytes_of(size_t id) const {
    int64_t count = 0;
    element_count(shapes_[id], &count);
    return static_cast<size_t>(count) * compute_size(program_.values[id].type);
  }

  void keep(size_t id) {
    if (places_[id].is_known) return;
    places_[id] = {{Place::Scratch, scratch(bytes_of(id)), 0}, true};
  }

  bool is_read_outside(size_t id, const std::vector<bool>& before) const {
    for (size_t reader = id + 1; reader < program_.values.size(); ++reader) {
      const Value& value = program_.values[reader];
      if (!phases_.is_needed[reader] || before[reader]) continue;
      if (std::count(value.operands, value.operands + operand_count(value), id) > 0) return true;
    }
    return false;
  }

  // Values that a phase computes and a later one, or a reduction, reads are in outputs or in scratch memory.
  void find_places() {
    for (size_t i = 0; i < program_.input_count; ++i) {
      int64_t offset = 0;
      const Value& value = program_.values[i];
      if (!dense_input(value, plan_.key.shapes[i], &offset)) continue;
      places_[i] = {{Place::Input, i, static_cast<size_t>(offset) * storage_size(value.type)}, true};
    }
    for (size_t o = 0; o < program_.outputs.size(); ++o) {
      const uint16_t id = program_.outputs[o];
      const Value& value = program_.values[id];
      const bool computed = value.kind == Value::Kind::Instruction || value.kind == Value::Kind::Reduction;
      if (!computed || places_[id].is_known || compute_type(value.type) != value.type) continue;
      places_[id] = {{Place::Output, o, 0}, true};
    }
    for (size_t id = 0; id < program_.values.size(); ++id) {
      const Value& value = program_.values[id];
      if (!phases_.is_needed[id]) continue;
      if (value.kind == Value::Kind::Reduction) keep(id);
      for (int i = 0; i < operand_count(value); ++i) {
        const uint16_t operand = value.operands[i];
        const bool later = is_instruction(operand) && phases_.phase[operand] != phases_.phase[id];
        if (later || value.kind == Value::Kind::Reduction) keep(operand);
      }
    }
  }

  bool add_phase(int phase, std::string* error) {
    WholePhase made;
    std::vector<bool> computes(program_.values.size());
    std::vector<PartResult> results;
    for (size_t id = 0; id < program_.values.size(); ++id) {
      computes[id] = is_instruction(id) && phases_.phase[id] == phase;
      const bool is_kept = places_[id].is_known && places_[id].place.place == Place::Scratch;
      if (computes[id] && is_kept) results.push_back({static_cast<uint16_t>(id), -1});
    }
    for (size_t id = 0; id < program_.values.size(); ++id) {
      const Value& value = program_.values[id];
      if (!phases_.is_needed[id] || value.kind != Value::Kind::Reduction || phases_.phase[id] != phase) continue;
      for (int i = 0; i < operand_count(value); ++i) add_operand(value.operands[i], &results);
    }
    for (size_t o = 0; o < program_.outputs.size(); ++o) {
      const uint16_t id = program_.outputs[o];
      const bool reduced = program_.values[id].kind == Value::Kind::Reduction;
      const int when = reduced ? phases_.earliest[id] : is_instruction(id) ? phases_.phase[id] : 0;
      if (when != phase) continue;
      const TensorPlace& place = places_[id].place;
      const bool there = reduced && places_[id].is_known && place.place == Place::Output && place.at == o;
      if (!there) results.push_back({id, static_cast<int>(o)});
    }
    if (!results.empty() && !plan_part(computes, results, &made, error)) return false;
    for (size_t id = 0; id < program_.values.size(); ++id) {
      const Value& value = program_.values[id];
      if (!phases_.is_needed[id] || value.kind != Value::Kind::Reduction || phases_.phase[id] != phase) continue;
      WholeReduction one;
      one.reduction = make_reduction(shapes_[value.operands[0]], program_.axes, value.reduce, compute_type(value.type),
                                     value.map);
      one.in = places_[value.operands[0]].place;
      one.out = places_[id].place;
      one.scratch = scratch(one.reduction.scratch_bytes);
      made.reductions.push_back(std::move(one));
    }
    plan_.phases.push_back(std::move(made));
    return true;
  }

  // What is reduced and no instruction computes is copied, unless it lies in memory as it is.
  void add_operand(uint16_t id, std::vector<PartResult>* results) {
    const Value::Kind kind = program_.values[id].kind;
    const bool copied = kind != Value::Kind::Instruction && kind != Value::Kind::Reduction &&
                        places_[id].place.place == Place::Scratch;
    const auto same = [id](const PartResult& result) { return result.value == id && result.output < 0; };
    if (copied && std::none_of(results->begin(), results->end(), same)) results->push_back({id, -1});
  }

  bool plan_part(const std::vector<bool>& computes, const std::vector<PartResult>& results, WholePhase* made,
                 std::string* error) {
    made->part = take_part(program_, shapes_, plan_.key.shapes, computes, results);
    std::vector<Shape> outputs;
    for (const PartResult& result : results) {
      outputs.push_back(shapes_[result.value]);
      made->outputs.push_back(result.output < 0 ? places_[result.value].place
                                                : TensorPlace{Place::Output, static_cast<size_t>(result.output), 0});
    }
    for (const uint16_t id : made->part.sources) {
      const bool input = program_.values[id].kind == Value::Kind::Input;
      made->inputs.push_back(input ? TensorPlace{Place::Input, id, 0} : places_[id].place);
    }
    PlanKey key;
    key.shapes = made->part.tensors;
    made->plan = make_plan(made->part.program, key, made->part.shapes, outputs, error);
    if (made->plan == nullptr) return false;
    made->scratch = scratch(made->plan->scratch_bytes);
    plan_.pointers = std::max(plan_.pointers, made->inputs.size() + made->outputs.size());
    return true;
  }

  const Program& program_;
  const std::vector<Shape>& shapes_;
  NestPlan& plan_;
  const Phases& phases_;
  std::vector<ValuePlace> places_;
  bool overflow_ = false;
};

}  // namespace

bool make_nest_plan(const Program& program, const PlanKey& key, NestPlan* plan, std::string* error) {
  plan->key = key;
  std::vector<Shape> shapes;
  if (!resolve_shapes(program, key.shapes, &shapes, error)) return false;
  if (!resolve_outputs(program, shapes, &plan->output_shapes, error)) return false;
  const auto bytes_of = [](const Shape& shape, DType type) {
    int64_t count = 0;
    element_count(shape, &count);
    return static_cast<size_t>(count) * storage_size(type);
  };
  for (size_t i = 0; i < program.input_count; ++i) {
    plan->input_bytes.push_back(bytes_of(key.shapes[i], program.values[i].type));
  }
  for (size_t o = 0; o < program.outputs.size(); ++o) {
    plan->output_bytes.push_back(bytes_of(plan->output_shapes[o], output_type(program, o)));
  }
  const Program simple = without_maps(program, shapes);
  const Phases phases = find_phases(simple);
  const NestShapes known{simple, plan->key.shapes, shapes};
  std::vector<BlockPlace> places;
  auto blocks = std::make_unique<NestBlocks>();
  if (WholePlanner(simple, shapes, phases, plan).make_before(values_before(known, phases), &places) &&
      plan_blocks(known, phases, places, blocks.get())) {
    plan->blocks = std::move(blocks);
    return true;
  }
  plan->phases.clear();
  plan->scratch_bytes = plan->pointers = 0;
  return WholePlanner(simple, shapes, phases, plan).make(error);
}

void run_nest(const NestPlan& plan, const void* const* inputs, void* const* outputs, const Host& host) {
  const size_t of_pointers = round_up(plan.pointers * sizeof(void*), kCacheLine);
  const RunMemory memory(host, of_pointers + plan.scratch_bytes);
  auto* const pointers = static_cast<void**>(memory.data());
  char* const scratch = static_cast<char*>(memory.data()) + of_pointers;
  const auto at = [&](const TensorPlace& place) -> void* {
    if (place.place == Place::Input) return const_cast<char*>(static_cast<const char*>(inputs[place.at]) + place.offset);
    return place.place == Place::Output ? outputs[place.at] : scratch + place.at;
  };
  for (const WholePhase& phase : plan.phases) {
    if (phase.plan != nullptr) {
      void** const read = pointers;
      void** const written = pointers + phase.inputs.size();
      std::transform(phase.inputs.begin(), phase.inputs.end(), read, at);
      std::transform(phase.outputs.begin(), phase.outputs.end(), written, at);
      run_plan(phase.part.program, *phase.plan, {read, written, scratch + phase.scratch}, host);
    }
    for (const WholeReduction& one : phase.reductions) {
      run_reduction(one.reduction, at(one.in), at(one.out), scratch + one.scratch, host);
    }
  }
  if (plan.blocks != nullptr) run_blocks(*plan.blocks, inputs, outputs, scratch, host);
}

}  // namespace onnxfuse
