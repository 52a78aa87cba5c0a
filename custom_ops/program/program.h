// A Program: typed SSA over scalars, parsed from the text in a fused node's `program` attribute.
#ifndef ONNXFUSE_PROGRAM_H_
#define ONNXFUSE_PROGRAM_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "program/dtype.h"
#include "program/view_steps.h"

namespace onnxfuse {

struct Value {
  enum class Kind : uint8_t {
    Input,
    Const,
    Instruction,
    Reduction,  // of what `map` makes of its operands, along the Program's axes, whose dimensions stay as 1
    Index,      // the coordinates along `axis` of the elements of its first operand
  };

  Kind kind;
  DType type;
  bool along_axis = false;      // Input: a vector along `axis` instead of NumPy broadcasting
  int axis = 0;                 // Input: counted from the front, or from the back if negative; Index: from the back
  std::vector<AxisSlice> slices;  // Input: of what the ones before leave, each a part; the tensor is broadcast
  bool swaps_halves = false;    // Input: along the last dimension of that the second half comes first
  std::vector<ViewStep> view;   // Input: what is read of the tensor, which is broadcast
  int row = -1;                 // Input: the id of an earlier one, whose elements are the numbers of rows: of these `view` is
  Op op{};                      // Instruction
  Reduce reduce{};              // Reduction
  Mapped map = Mapped::Plain;   // Reduction: of its first operand, and for a product its second (no text has another)
  DType op_type{};              // Instruction: T of the type rule
  uint16_t operands[3] = {};    // ids of earlier values
  int line = 0;                 // in the text, from 1
  uint64_t bits = 0;            // Const: the value in the compute type
};

struct Program {
  std::vector<Value> values;  // by id; the inputs come first
  std::vector<uint16_t> outputs;
  std::vector<std::vector<ViewStep>> output_views;  // for each output the steps that lead to its tensor; or none at all
  // For each output 0 if it begins a tensor, and the axis, which is negative, if it lies behind the output before in one
  // tensor; or none at all, where each has its own.
  std::vector<int> appends;
  std::vector<int> axes;  // of all reductions: negative, in rising order
  size_t input_count = 0;
  bool contracts = false;  // whether a product may be added without being rounded before
};

// How many operands a value has whose elements it is made of.
inline int operand_count(const Value& value) {
  if (value.kind == Value::Kind::Reduction) return 1;
  return value.kind == Value::Kind::Instruction ? info(value.op).arity : 0;
}

inline bool reduces(const Program& program) { return !program.axes.empty(); }

inline DType output_type(const Program& program, size_t o) { return program.values[program.outputs[o]].type; }

// How many tensors the outputs are.
inline size_t tensor_count(const Program& program) {
  if (program.appends.empty()) return program.outputs.size();
  return static_cast<size_t>(std::count(program.appends.begin(), program.appends.end(), 0));
}
// The output that begins tensor `t`.
size_t first_output(const Program& program, size_t t);

// Whether inputs may be parts of tensors, or tensors in another order, and outputs tensors of another shape; and whether
// values may be reduced beside that.
enum class Reads { WholeTensors, Views, Reductions };

// Reads and validates `text`.  On failure returns false and sets `error` to one line that names the line of the text;
// nothing in `text` is trusted.
bool parse_program(std::string_view text, Program* program, std::string* error, Reads reads = Reads::WholeTensors);

// Whether an input is rows of a tensor, along its first axis, whose numbers another input has.
inline bool is_named(const Value& value) { return value.row >= 0; }
bool names_rows(const Program& program);

// Whether an input is not a whole tensor in its own order.
bool is_view(const Value& input);

// The program for tensors of a byte for each element in place of those with two in a byte.
Program without_nibbles(const Program& program);

// The program for float tensors in place of all its float16 inputs and outputs.  ORT widens a node between others that
// have no float16 kernels, rather than convert before and after each of them.
Program widen_half(const Program& program);

}  // namespace onnxfuse

#endif  // ONNXFUSE_PROGRAM_H_
