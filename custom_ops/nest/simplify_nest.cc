#include "nest/simplify_nest.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace onnxfuse {
namespace {

// Numbers of which no one need fear that they, or their reciprocals, are denormal.
constexpr double kSmall = 1e-30;
constexpr double kLarge = 1e30;

bool is_float(DType type) { return compute_type(type) == DType::f32 || type == DType::f64; }

// Elements that each result of a reduction is of.
int64_t elements_reduced(const Program& program, const Shape& operand) {
  int64_t count = 1;
  for (const int axis : program.axes) count *= operand.from_back(-1 - axis);
  return count;
}

// What reads each value: how many values, and how many of them are reductions; outputs count too.
struct Readers {
  int all = 0;
  int reductions = 0;
};

std::vector<Readers> count_readers(const Program& program) {
  std::vector<Readers> readers(program.values.size());
  for (const Value& value : program.values) {
    for (int i = 0; i < operand_count(value); ++i) {
      ++readers[value.operands[i]].all;
      if (value.kind == Value::Kind::Reduction) ++readers[value.operands[i]].reductions;
    }
  }
  for (const uint16_t id : program.outputs) ++readers[id].all;
  return readers;
}

bool is_made_by(const Program& program, uint16_t id, Op op) {
  return program.values[id].kind == Value::Kind::Instruction && program.values[id].op == op;
}

double number_of(const Value& constant) {
  if (constant.type == DType::f64) {
    double number;
    std::memcpy(&number, &constant.bits, sizeof number);
    return number;
  }
  float number;
  std::memcpy(&number, &constant.bits, sizeof number);
  return static_cast<double>(number);
}

// Values that are made of reductions and constants alone: each has one element for a row.
std::vector<bool> find_results(const Program& program) {
  std::vector<bool> results(program.values.size());
  for (size_t id = 0; id < results.size(); ++id) {
    const Value& value = program.values[id];
    results[id] = value.kind == Value::Kind::Reduction;
    if (value.kind != Value::Kind::Instruction) continue;
    bool all = true;
    for (int i = 0; i < operand_count(value); ++i) {
      const uint16_t operand = value.operands[i];
      results[id] = results[id] || results[operand];
      all = all && (results[operand] || program.values[operand].kind == Value::Kind::Const);
    }
    results[id] = results[id] && all;
  }
  return results;
}

// Whether it is a sum of exponentials of which one is that of 0, as of Softmax.
bool sums_exponentials(const Program& program, const Value& sum) {
  if (sum.reduce != Reduce::ReduceSum || !is_made_by(program, sum.operands[0], Op::Exp)) return false;
  const uint16_t power = program.values[sum.operands[0]].operands[0];
  if (!is_made_by(program, power, Op::Sub)) return false;
  const Value& distance = program.values[power];
  const Value& most = program.values[distance.operands[1]];
  return most.kind == Value::Kind::Reduction && most.reduce == Reduce::ReduceMax &&
         most.operands[0] == distance.operands[0];
}

// Whether a value is zero, or far from numbers whose reciprocals are denormal or too large, or none.
bool has_reciprocal(const Program& program, uint16_t id) {
  const Value& value = program.values[id];
  if (value.kind == Value::Kind::Reduction) return sums_exponentials(program, value);
  if (value.kind != Value::Kind::Instruction) return false;
  if (value.op == Op::Sqrt) return true;
  if (value.op != Op::Max && value.op != Op::Add) return false;
  for (int i = 0; i < 2; ++i) {
    const Value& constant = program.values[value.operands[i]];
    if (constant.kind != Value::Kind::Const) continue;
    const double number = number_of(constant);
    return number > kSmall && number < kLarge && is_made_by(program, value.operands[1 - i], Op::Sqrt);
  }
  return false;
}

Value instruction(Op op, const Value& like, uint16_t first, uint16_t second) {
  Value made{};
  made.kind = Value::Kind::Instruction;
  made.op = op;
  made.type = made.op_type = like.type;
  made.operands[0] = first;
  made.operands[1] = second;
  made.line = like.line;
  return made;
}

}  // namespace

Program with_reciprocals(const Program& program) {
  const std::vector<bool> results = find_results(program);
  Program made = program;
  made.values.clear();
  std::vector<uint16_t> ids;
  std::vector<int> reciprocals(program.values.size(), -1);
  const auto add = [&](Value value) {
    made.values.push_back(std::move(value));
    return static_cast<uint16_t>(made.values.size() - 1);
  };
  for (size_t id = 0; id < program.values.size(); ++id) {
    Value value = program.values[id];
    const uint16_t divisor = value.operands[1];
    const bool divides = value.kind == Value::Kind::Instruction && value.op == Op::Div && is_float(value.op_type) &&
                         results[divisor] && !results[value.operands[0]] && has_reciprocal(program, divisor);
    const int count = value.kind == Value::Kind::Index ? 1 : operand_count(value);
    for (int i = 0; i < count; ++i) value.operands[i] = ids[value.operands[i]];
    if (divides) {
      if (reciprocals[divisor] < 0) reciprocals[divisor] = add(instruction(Op::Reciprocal, value, value.operands[1], 0));
      value.op = Op::Mul;
      value.operands[1] = static_cast<uint16_t>(reciprocals[divisor]);
    }
    ids.push_back(add(std::move(value)));
  }
  for (uint16_t& output : made.outputs) output = ids[output];
  return made;
}

Program without_maps(const Program& program, const std::vector<Shape>& shapes) {
  Program result = program;
  const std::vector<Readers> readers = count_readers(program);
  for (Value& value : result.values) {
    if (value.kind != Value::Kind::Reduction) continue;
    const uint16_t operand = value.operands[0];
    if (elements_reduced(program, shapes[operand]) == 1) {
      // What is reduced of one element is that.
      value.kind = Value::Kind::Instruction;
      value.op = Op::Cast;
      value.op_type = compute_type(value.type);
      continue;
    }
    // A square or an absolute value that nothing else reads is computed while it is reduced, but for the rare ones.
    const Value& made = program.values[operand];
    const bool only_reduced = readers[operand].all == readers[operand].reductions;
    if (made.kind != Value::Kind::Instruction || !is_float(made.type) || !only_reduced) continue;
    const bool sums = value.reduce == Reduce::ReduceSum || value.reduce == Reduce::ReduceMean;
    if (made.op == Op::Abs && (sums || value.reduce == Reduce::ReduceMax)) {
      value.map = Mapped::Absolute;
    } else if (made.op == Op::Mul && sums && made.operands[0] == made.operands[1]) {
      value.map = Mapped::Square;
    } else {
      continue;
    }
    value.operands[0] = made.operands[0];
  }
  return result;
}

}  // namespace onnxfuse
