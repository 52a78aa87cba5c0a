#include "program/program.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "figures/programs.h"
#include "program/words.h"
#include "simd/half.h"

namespace onnxfuse {
namespace {

constexpr int kMaxAxis = 64;

bool parse_axis(std::string_view word, int* out) {
  const bool negative = !word.empty() && word[0] == '-';
  if (negative) word.remove_prefix(1);
  uint32_t number = 0;
  if (!parse_number(word, kMaxAxis, &number) || (negative ? number == 0 : number == kMaxAxis)) return false;
  *out = negative ? -static_cast<int>(number) : static_cast<int>(number);
  return true;
}

bool parse_slices(std::string_view word, std::vector<AxisSlice>* out) {
  while (out->size() < kMaxSlices) {
    AxisSlice slice{};
    if (!take_integer(&word, ':', &slice.axis) || slice.axis < -kMaxAxis || slice.axis >= kMaxAxis) return false;
    if (!take_integer(&word, ':', &slice.start) || !take_integer(&word, ':', &slice.end)) return false;
    if (!take_integer(&word, 0, &slice.step) || slice.step < 1) return false;
    out->push_back(slice);
    if (word.empty()) return true;
    if (word[0] != ',') return false;
    word.remove_prefix(1);
  }
  return false;
}

bool parse_dtype(std::string_view word, DType* out) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (word == kDTypes[i].name) {
      *out = static_cast<DType>(i);
      return true;
    }
  }
  return false;
}

bool parse_op(std::string_view word, Op* out) {
  for (int i = 0; i < kOpCount; ++i) {
    if (word == kOps[i].name) {
      *out = static_cast<Op>(i);
      return true;
    }
  }
  return false;
}

bool parse_reduce(std::string_view word, Reduce* out) {
  for (int i = 0; i < kReductionCount; ++i) {
    if (word == kReductions[i].name) {
      *out = static_cast<Reduce>(i);
      return true;
    }
  }
  return false;
}

// Axes counted from the back, in rising order.
bool parse_axes(std::string_view word, std::vector<int>* out) {
  while (true) {
    int axis = 0;
    if (!take_integer(&word, 0, &axis) || axis < (out->empty() ? -kMaxRank : out->back() + 1) || axis >= 0) return false;
    out->push_back(axis);
    if (word.empty()) return true;
    if (word[0] != ',') return false;
    word.remove_prefix(1);
  }
}

// Hex digits of the stored bit pattern -> the value in the compute type.
bool parse_bits(std::string_view word, DType type, uint64_t* out) {
  if (word.size() != 2 * storage_size(type)) return false;
  uint64_t bits = 0;
  for (const char c : word) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return false;
    bits = bits << 4 | static_cast<uint64_t>(digit);
  }
  if (type == DType::boolean && bits > 1) return false;
  if (type == DType::f16 || type == DType::bf16) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = type == DType::f16 ? baseline::math::f16_to_f32(half) : baseline::math::bf16_to_f32(half);
    uint32_t narrow;
    std::memcpy(&narrow, &value, sizeof(narrow));
    bits = narrow;
  }
  *out = bits;
  return true;
}

class Parser {
 public:
  Parser(Program* program, Reads reads) : program_(*program), reads_(reads) {}

  bool parse(std::string_view text, std::string* error) {
    if (text.size() > kMaxText) return fail("the text is longer than 1 MiB", error);
    while (!text.empty()) {
      ++line_;
      const size_t end = text.find('\n');
      if (end == std::string_view::npos) return fail("the last line has no end", error);
      const std::string_view line = text.substr(0, end);
      text.remove_prefix(end + 1);
      const char* problem = line_ == 1 ? parse_header(line) : parse_line(line);
      if (problem != nullptr) return fail(problem, error);
    }
    if (line_ == 0) return fail("the text is empty", error);
    if (program_.outputs.empty()) return fail("there is no output", error);
    if (names_rows(program_) && !reduces(program_)) return fail("rows are named and nothing is reduced", error);
    const auto& views = program_.output_views;
    if (std::all_of(views.begin(), views.end(), [](const auto& steps) { return steps.empty(); })) {
      program_.output_views.clear();
    }
    const auto& appends = program_.appends;
    if (std::all_of(appends.begin(), appends.end(), [](int axis) { return axis == 0; })) program_.appends.clear();
    return true;
  }

 private:
  bool fail(const char* problem, std::string* error) const {
    *error = "line " + std::to_string(line_) + ": " + problem;
    return false;
  }

  const char* parse_header(std::string_view line) {
    is_newest_ = line == "onnxfuse 3";
    is_newer_ = is_newest_ || line == "onnxfuse 2";
    return is_newer_ || line == "onnxfuse 1" ? nullptr : "the first line is not 'onnxfuse 1', 'onnxfuse 2' or 'onnxfuse 3'";
  }

  const char* parse_line(std::string_view line) {
    std::string_view words[6];
    const size_t count = split(line, words, 6);
    if (count > (is_newest_ ? 6 : 5)) return "too many words";
    if (words[0] == "contract") return parse_contract(count);
    if (words[0] == "output") return parse_output(words, count, 0);
    if (words[0] == "append" && is_newer_) return parse_append(words, count);
    if (!program_.outputs.empty()) return "outputs come last";
    if (program_.values.size() == kMaxValues) return "more than 4096 values";
    Value value{};
    value.line = line_;
    const char* problem = words[0] == "input"                                  ? parse_input(words, count, &value)
                          : words[0] == "const"                                ? parse_const(words, count, &value)
                          : is_newer_ && parse_reduce(words[0], &value.reduce) ? parse_reduction(words, count, &value)
                          : is_newer_ && words[0] == "index"                   ? parse_index(words, count, &value)
                                                                               : parse_instruction(words, count, &value);
    if (problem == nullptr) program_.values.push_back(std::move(value));
    return problem;
  }

  const char* parse_contract(size_t count) {
    if (count != 1 || line_ != 2) return "'contract' is the whole second line";
    program_.contracts = true;
    return nullptr;
  }

  const char* parse_append(std::string_view* words, size_t count) {
    int axis = 0;
    if (program_.outputs.empty()) return "nothing is there to append to";
    if (reads_ != Reads::Views) return "an output is a whole tensor here";
    if (count < 3 || !take_integer(&words[2], 0, &axis) || !words[2].empty() || axis < -kMaxRank || axis >= 0) {
      return "expected 'append <id> <axis from -16 to -1> [view <steps>]'";
    }
    if (program_.appends.back() != 0 && program_.appends.back() != axis) return "the parts of an output have one axis";
    std::swap(words[2], words[1]);
    if (const char* const problem = parse_output(words + 1, count - 1, axis)) return problem;
    const size_t last = program_.outputs.size() - 1;
    const bool fits = output_type(program_, last) == output_type(program_, last - 1);
    return fits ? nullptr : "the parts of an output have one type";
  }

  const char* parse_output(const std::string_view* words, size_t count, int axis) {
    uint32_t id = 0;
    const bool has_view = is_newer_ && count == 4 && words[2] == "view";
    if (count != 2 && !has_view) return is_newer_ ? "expected '… <id> [view <steps>]'" : "expected 'output <id>'";
    if (program_.outputs.size() == kMaxOutputs) return "more than 64 outputs";
    if (!parse_id(words[1], &id)) return "the output is not the id of an earlier value";
    program_.outputs.push_back(static_cast<uint16_t>(id));
    program_.output_views.emplace_back();
    program_.appends.push_back(axis);
    if (!has_view) return nullptr;
    if (reads_ == Reads::WholeTensors) return "whole tensors are written here";
    std::vector<ViewStep>& steps = program_.output_views.back();
    if (!parse_view_steps(words[3], &steps)) return "these are not steps of a view";
    const auto moves = [](const ViewStep& step) {
      return step.kind == ViewStep::Kind::Slice || step.kind == ViewStep::Kind::Permute ||
             step.kind == ViewStep::Kind::Nibbles;
    };
    if (std::any_of(steps.begin(), steps.end(), moves)) return "an output has all that is computed, in its order";
    return nullptr;
  }

  const char* parse_input(const std::string_view* words, size_t count, Value* value) {
    value->kind = Value::Kind::Input;
    static constexpr char expected[] =
        "expected 'input <dtype> broadcast|axis <k>|halves|slice <axis>:<start>:<end>:<step>,… [halves]|view <steps>'";
    if (count < 3 || !parse_dtype(words[1], &value->type)) return expected;
    if (program_.values.size() != program_.input_count) return "an input follows a const or an instruction";
    if (program_.input_count == kMaxInputs) return "more than 128 inputs";
    if (words[2] == "axis" && count == 4) {
      if (!parse_axis(words[3], &value->axis)) return "the axis is not a number from -64 to 63";
      value->along_axis = true;
    } else if (words[2] == "slice" && (count == 4 || (count == 5 && words[4] == "halves"))) {
      if (reads_ == Reads::WholeTensors) return "whole tensors are read here";
      if (!parse_slices(words[3], &value->slices)) return "these are not slices of an axis";
      value->swaps_halves = count == 5;
    } else if (words[2] == "halves" && count == 3) {
      if (reads_ == Reads::WholeTensors) return "whole tensors are read here";
      value->swaps_halves = true;
    } else if (words[2] == "row" && is_newest_) {
      if (const char* const problem = parse_row(words, count, value)) return problem;
    } else if (words[2] == "view" && count == 4 && is_newer_) {
      if (reads_ == Reads::WholeTensors) return "whole tensors are read here";
      if (!parse_view_steps(words[3], &value->view)) return "these are not steps of a view";
      if (has_nibbles(value->view)) {
        if (!is_newest_) return "elements of 4 bits are of version 3";
        if (value->type != DType::u8) return "only bytes have halves";
        if (reads_ != Reads::Reductions) return "no elements of 4 bits are read here";
      }
    } else if (words[2] != "broadcast" || count != 3) {
      return expected;
    }
    ++program_.input_count;
    return nullptr;
  }

  const char* parse_row(const std::string_view* words, size_t count, Value* value) {
    uint32_t id = 0;
    if (reads_ != Reads::Reductions) return "no rows are named here";
    if (count != 4 && (count != 6 || words[4] != "view")) return "expected 'input <dtype> row <id> [view <steps>]'";
    if (!parse_id(words[3], &id)) return "the numbers of rows are not the id of an earlier input";
    const Value& numbers = program_.values[id];
    if (is_named(numbers) || numbers.along_axis || numbers.swaps_halves) return "these are no numbers of rows";
    if (numbers.type != DType::i32 && numbers.type != DType::i64) return "numbers of rows are i32 or i64";
    if (count == 6 && !parse_view_steps(words[5], &value->view)) return "these are not steps of a view";
    if (has_nibbles(value->view)) return "rows of halves of bytes";
    value->row = static_cast<int>(id);
    return nullptr;
  }

  const char* parse_const(const std::string_view* words, size_t count, Value* value) {
    value->kind = Value::Kind::Const;
    if (count != 3 || !parse_dtype(words[1], &value->type)) return "expected 'const <dtype> <bits>'";
    if (!parse_bits(words[2], value->type, &value->bits)) return "the bits are not hex digits of the type's width";
    return nullptr;
  }

  const char* parse_instruction(const std::string_view* words, size_t count, Value* value) {
    value->kind = Value::Kind::Instruction;
    if (!parse_op(words[0], &value->op)) return "unknown operator";
    const OpInfo& op = info(value->op);
    if (count < 2 || !parse_dtype(words[1], &value->op_type)) return "expected '<op> <dtype> <operands>'";
    if (!has_kernel(value->op, value->op_type)) return "the operator has no kernel for this type";
    if (count != 2u + op.arity) return "wrong number of operands";
    for (size_t i = 0; i < op.arity; ++i) {
      uint32_t id = 0;
      if (!parse_id(words[2 + i], &id)) return "an operand is not the id of an earlier value";
      const DType expected = op.rule == Rule::Select && i == 0 ? DType::boolean : value->op_type;
      if (op.rule != Rule::Cast && program_.values[id].type != expected) return "an operand has the wrong type";
      value->operands[i] = static_cast<uint16_t>(id);
    }
    value->type = op.rule == Rule::Compare ? DType::boolean : value->op_type;
    return nullptr;
  }

  const char* parse_reduction(const std::string_view* words, size_t count, Value* value) {
    value->kind = Value::Kind::Reduction;
    static constexpr char expected[] = "expected '<reduction> <dtype> <id> <axes>'";
    uint32_t id = 0;
    std::vector<int> axes;
    if (reads_ != Reads::Reductions) return "nothing is reduced here";
    if (count != 4 || !parse_dtype(words[1], &value->type)) return expected;
    if (!has_kernel(value->reduce, value->type)) return "the reduction has no kernel for this type";
    if (!parse_id(words[2], &id)) return "the operand is not the id of an earlier value";
    if (program_.values[id].type != value->type) return "the operand has the wrong type";
    if (!parse_axes(words[3], &axes)) return "the axes are not numbers from -16 to -1 in rising order";
    if (!program_.axes.empty() && axes != program_.axes) return "the reductions of a program have the same axes";
    program_.axes = std::move(axes);
    value->operands[0] = static_cast<uint16_t>(id);
    return nullptr;
  }

  const char* parse_index(const std::string_view* words, size_t count, Value* value) {
    value->kind = Value::Kind::Index;
    uint32_t id = 0;
    std::vector<int> axes;
    if (reads_ == Reads::WholeTensors) return "there are no coordinates here";
    if (count != 4 || !parse_dtype(words[1], &value->type)) return "expected 'index <dtype> <id> <axis>'";
    if (compute_type(value->type) == DType::boolean) return "there are no coordinates of this type";
    if (!parse_id(words[2], &id)) return "the operand is not the id of an earlier value";
    if (!parse_axes(words[3], &axes) || axes.size() != 1) return "the axis is not a number from -16 to -1";
    value->axis = axes[0];
    value->operands[0] = static_cast<uint16_t>(id);
    return nullptr;
  }

  bool parse_id(std::string_view word, uint32_t* id) const {
    return !program_.values.empty() && parse_number(word, static_cast<uint32_t>(program_.values.size() - 1), id);
  }

  Program& program_;
  const Reads reads_;
  bool is_newer_ = false;
  bool is_newest_ = false;
  int line_ = 0;
};

}  // namespace

bool parse_program(std::string_view text, Program* program, std::string* error, Reads reads) {
  *program = Program{};
  return Parser(program, reads).parse(text, error);
}

bool names_rows(const Program& program) {
  const auto end = program.values.begin() + static_cast<ptrdiff_t>(program.input_count);
  return std::any_of(program.values.begin(), end, is_named);
}

bool is_view(const Value& input) { return !input.slices.empty() || input.swaps_halves || !input.view.empty(); }

size_t first_output(const Program& program, size_t t) {
  if (program.appends.empty()) return t;
  size_t o = 0;
  for (size_t begun = 0; program.appends[o] != 0 || begun++ != t;) ++o;
  return o;
}

Program without_nibbles(const Program& program) {
  Program whole = program;
  for (size_t i = 0; i < whole.input_count; ++i) {
    std::vector<ViewStep>& view = whole.values[i].view;
    if (has_nibbles(view)) view.erase(view.begin());
  }
  return whole;
}

Program widen_half(const Program& program) {
  Program wide = program;
  for (size_t i = 0; i < wide.input_count; ++i) {
    if (wide.values[i].type == DType::f16) wide.values[i].type = DType::f32;
  }
  for (uint16_t& output : wide.outputs) {
    if (wide.values[output].type != DType::f16) continue;
    Value cast{};
    cast.kind = Value::Kind::Instruction;
    cast.op = Op::Cast;
    cast.type = cast.op_type = DType::f32;
    cast.operands[0] = output;
    cast.line = wide.values[output].line;
    output = static_cast<uint16_t>(wide.values.size());
    wide.values.push_back(cast);
  }
  return wide;
}

}  // namespace onnxfuse
