#include "nest/program_part.h"

#include <algorithm>
#include <climits>
#include <utility>

namespace onnxfuse {
namespace {

bool is_half(DType type) { return compute_type(type) != type; }

class PartMaker {
 public:
  PartMaker(const Program& whole, const std::vector<Shape>& shapes, const std::vector<Shape>& tensors,
            const std::vector<bool>& computes)
      : whole_(whole), shapes_(shapes), tensors_(tensors), computes_(computes), ids_(whole.values.size(), -1) {
    part_.program.contracts = whole.contracts;
  }

  ProgramPart make(const std::vector<PartResult>& results) {
    std::vector<bool> goes_on(whole_.values.size());  // read in the type that it is computed in
    std::vector<bool> goes_out(whole_.values.size());
    for (const PartResult& result : results) (result.output < 0 ? goes_on : goes_out)[result.value] = true;
    for (size_t id = 0; id < whole_.values.size(); ++id) {
      if (!computes_[id]) continue;
      for (int i = 0; i < operand_count(whole_.values[id]); ++i) add_source(whole_.values[id].operands[i]);
    }
    for (const PartResult& result : results) add_source(result.value);
    add_inputs();
    for (size_t id = 0; id < whole_.values.size(); ++id) {
      if (computes_[id]) add_instruction(id, goes_on[id] && !goes_out[id]);
    }
    for (const PartResult& result : results) {
      const Value& value = whole_.values[result.value];
      uint16_t id = number(result.value);
      const DType wanted = result.output < 0 ? compute_type(value.type) : value.type;
      // A pass that only hands on what it reads copies it.
      const bool copies = result.output < 0 && !computes_[result.value];
      if (copies || part_.program.values[id].type != wanted) id = add_cast(id, wanted, shapes_[result.value]);
      part_.program.outputs.push_back(id);
    }
    part_.results = results;
    return std::move(part_);
  }

 private:
  bool is_source(uint16_t id) const {
    const Value::Kind kind = whole_.values[id].kind;
    return !computes_[id] && kind != Value::Kind::Const && kind != Value::Kind::Index;
  }

  void add_source(uint16_t id) {
    if (is_source(id) && std::find(part_.sources.begin(), part_.sources.end(), id) == part_.sources.end()) {
      part_.sources.push_back(id);
    }
  }

  void add_inputs() {
    for (const uint16_t id : part_.sources) {
      const Value& value = whole_.values[id];
      if (value.kind == Value::Kind::Input) {
        part_.tensors.push_back(tensors_[id]);
        add(id, value);
        continue;
      }
      Value input{};
      input.kind = Value::Kind::Input;
      input.type = compute_type(value.type);
      input.line = value.line;
      part_.tensors.push_back(shapes_[id]);
      add(id, std::move(input));
    }
    part_.program.input_count = part_.sources.size();
  }

  // If it is `wide`, as the type that it is computed in: values are only rounded by casts and in outputs.
  void add_instruction(size_t id, bool wide) {
    Value value = whole_.values[id];
    for (int i = 0; i < operand_count(value); ++i) value.operands[i] = number(value.operands[i]);
    if (wide && is_half(value.type)) {
      value.type = compute_type(value.type);
      if (value.op != Op::Cast) value.op_type = value.type;
    }
    add(id, std::move(value));
  }

  // Of a value of the whole Program; constants and coordinates come with those that read them.
  uint16_t number(uint16_t id) {
    if (ids_[id] < 0) {
      Value value = whole_.values[id];
      value.operands[0] = 0;
      add(id, std::move(value));
    }
    return static_cast<uint16_t>(ids_[id]);
  }

  void add(size_t id, Value value) {
    ids_[id] = static_cast<int>(part_.program.values.size());
    part_.program.values.push_back(std::move(value));
    part_.shapes.push_back(shapes_[id]);
  }

  uint16_t add_cast(uint16_t operand, DType type, const Shape& shape) {
    Value cast{};
    cast.kind = Value::Kind::Instruction;
    cast.op = Op::Cast;
    cast.type = cast.op_type = type;
    cast.operands[0] = operand;
    cast.line = part_.program.values[operand].line;
    part_.program.values.push_back(std::move(cast));
    part_.shapes.push_back(shape);
    return static_cast<uint16_t>(part_.program.values.size() - 1);
  }

  const Program& whole_;
  const std::vector<Shape>& shapes_;
  const std::vector<Shape>& tensors_;
  const std::vector<bool>& computes_;
  std::vector<int> ids_;  // in the part, -1: none
  ProgramPart part_;
};

}  // namespace

Phases find_phases(const Program& program) {
  const size_t count = program.values.size();
  Phases phases{std::vector<int>(count), std::vector<int>(count, INT_MAX), std::vector<bool>(count), 0};
  for (size_t id = 0; id < count; ++id) {
    const Value& value = program.values[id];
    for (int i = 0; i < operand_count(value); ++i) {
      phases.earliest[id] = std::max(phases.earliest[id], phases.earliest[value.operands[i]]);
    }
    if (value.kind == Value::Kind::Reduction) ++phases.earliest[id];
  }
  for (const uint16_t id : program.outputs) {
    phases.is_needed[id] = true;
    phases.phase[id] = phases.earliest[id];
  }
  for (size_t id = count; id-- > 0;) {
    const Value& value = program.values[id];
    if (!phases.is_needed[id]) continue;
    if (value.kind == Value::Kind::Reduction) phases.phase[id] = phases.earliest[value.operands[0]];
    phases.count = std::max(phases.count, phases.earliest[id] + 1);
    for (int i = 0; i < operand_count(value); ++i) {
      const uint16_t operand = value.operands[i];
      phases.is_needed[operand] = true;
      phases.phase[operand] = std::min(phases.phase[operand], phases.phase[id]);
    }
  }
  return phases;
}

ProgramPart take_part(const Program& whole, const std::vector<Shape>& shapes, const std::vector<Shape>& tensors,
                      const std::vector<bool>& computes, const std::vector<PartResult>& results) {
  return PartMaker(whole, shapes, tensors, computes).make(results);
}

bool is_same(const Shape& a, const Shape& b) { return without_leading_ones(a) == without_leading_ones(b); }

bool find_space(const NestShapes& shapes, const Phases& phases, Shape* space) {
  *space = Shape{};
  for (size_t id = 0; id < shapes.values.size(); ++id) {
    if (phases.is_needed[id] && !broadcast(*space, shapes.values[id], space)) return false;
  }
  return true;
}

std::vector<bool> values_before(const NestShapes& shapes, const Phases& phases) {
  const Program& program = shapes.program;
  std::vector<bool> before(program.values.size());
  Shape space;
  if (!find_space(shapes, phases, &space)) return before;
  for (size_t id = 0; id < before.size(); ++id) {
    if (!phases.is_needed[id] || program.values[id].kind != Value::Kind::Instruction || phases.earliest[id] != 0) continue;
    before[id] = !is_same(shapes.values[id], space);
  }
  return before;
}

}  // namespace onnxfuse
