// Fuzzing of Programs that reduce: texts and shapes that nobody should trust, and what comes out.
//
//   fuzz_reduction [runs] [seed]
// Where a run is small enough it happens on memory of exactly the size, so that AddressSanitizer sees one element too
// many, and its results are held against the same in double.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "figures/programs.h"
#include "nest/named_rows.h"
#include "nest/nest_plan.h"
#include "nest/simplify_nest.h"
#include "platform/error.h"
#include "program/program_shapes.h"
#include "tests/fuzz/fuzz_conv_nodes.h"
#include "tests/fuzz/fuzz_row_programs.h"
#include "tests/fuzz/fuzz_tensors.h"

namespace {

using namespace onnxfuse;
using fuzz::below;
using fuzz::count_of;
using fuzz::expect;
using fuzz::expect_reason;
using fuzz::one_of;
using fuzz::place_in;
using fuzz::RowProgram;

constexpr int64_t kMost = 60'000;

using Doubles = std::vector<double>;

// A NaN wins.
double larger(double a, double b) { return std::isnan(a) || a > b ? a : b; }
double smaller(double a, double b) { return std::isnan(a) || a < b ? a : b; }

// What a Program means, in double.
class Reference {
 public:
  Reference(const Program& program, const std::vector<Shape>& tensors, const std::vector<Shape>& shapes,
            const std::vector<Doubles>& inputs)
      : program_(program), tensors_(tensors), shapes_(shapes), inputs_(inputs) {}

  std::vector<Doubles> run() {
    for (size_t id = 0; id < program_.values.size(); ++id) values_.push_back(evaluate(id));
    std::vector<Doubles> outputs;
    for (const uint16_t id : program_.outputs) outputs.push_back(values_[id]);
    return outputs;
  }

  // The largest magnitude of any number on the way: an error is small beside it.
  double largest() const { return largest_; }

 private:
  Doubles evaluate(size_t id) {
    const Value& value = program_.values[id];
    const Shape& shape = shapes_[id];
    const auto count = static_cast<size_t>(count_of(shape));
    Doubles result(count);
    for (size_t i = 0; i < count && value.kind != Value::Kind::Reduction; ++i) {
      result[i] = element(id, value, shape, static_cast<int64_t>(i));
    }
    if (value.kind == Value::Kind::Reduction) reduce(value, shape, &result);
    for (const double x : result) {
      if (std::isfinite(x)) largest_ = std::max(largest_, std::abs(x));
    }
    return result;
  }

  double element(size_t id, const Value& value, const Shape& shape, int64_t i) const {
    if (value.kind == Value::Kind::Const) {
      float number;
      std::memcpy(&number, &value.bits, sizeof number);
      return static_cast<double>(number);
    }
    int64_t index[kMaxRank] = {};
    int64_t rest = i;
    for (int d = shape.rank; d-- > 0;) {
      index[d] = rest % shape.dims[static_cast<size_t>(d)];
      rest /= shape.dims[static_cast<size_t>(d)];
    }
    if (value.kind == Value::Kind::Index) return static_cast<double>(index[shape.rank + value.axis]);
    if (value.kind == Value::Kind::Input) {
      if (value.along_axis) return inputs_[id][static_cast<size_t>(i)];
      View view;
      std::string error;
      expect(input_view(value, tensors_[id], &view, &error), "a plan for a view that does not fit");
      int64_t place = view.offset;
      for (int d = 0; d < shape.rank; ++d) place += index[d] * view.strides[static_cast<size_t>(d)];
      return inputs_[id][static_cast<size_t>(place)];
    }
    const auto operand = [&](int k) { return values_[value.operands[k]][place_in(shapes_[value.operands[k]], shape, i)]; };
    const double a = operand(0);
    switch (value.op) {
      case Op::Add: return a + operand(1);
      case Op::Sub: return a - operand(1);
      case Op::Mul: return a * operand(1);
      case Op::Div: return a / operand(1);
      case Op::Max: return larger(a, operand(1));
      case Op::Min: return smaller(a, operand(1));
      case Op::Abs: return std::abs(a);
      case Op::Neg: return -a;
      case Op::Relu: return a < 0 ? 0.0 : a;
      case Op::Sqrt: return std::sqrt(a);
      case Op::Exp: return std::exp(a);
      case Op::Sigmoid: return 1 / (1 + std::exp(-a));
      case Op::Tanh: return std::tanh(a);
      default: expect(false, "an operator that is not made here"); return 0;
    }
  }

  void reduce(const Value& value, const Shape& shape, Doubles* result) const {
    const Shape& from = shapes_[value.operands[0]];
    const Doubles& elements = values_[value.operands[0]];
    const bool most = value.reduce == Reduce::ReduceMax;
    const bool least = value.reduce == Reduce::ReduceMin;
    const bool product = value.reduce == Reduce::ReduceProd;
    std::fill(result->begin(), result->end(), most ? -INFINITY : least ? INFINITY : product ? 1.0 : 0.0);
    for (size_t i = 0; i < elements.size(); ++i) {
      double& to = (*result)[place_in(shape, from, static_cast<int64_t>(i))];
      to = most ? larger(to, elements[i]) : least ? smaller(to, elements[i]) : product ? to * elements[i] : to + elements[i];
    }
    if (value.reduce != Reduce::ReduceMean) return;
    double size = 1;
    for (const int axis : program_.axes) size *= static_cast<double>(from.from_back(-1 - axis));
    for (double& mean : *result) mean /= std::max(size, 1.0);
  }

  const Program& program_;
  const std::vector<Shape>& tensors_;
  const std::vector<Shape>& shapes_;
  const std::vector<Doubles>& inputs_;
  std::vector<Doubles> values_;
  double largest_ = 1;
};

std::string number(int64_t n) { return std::to_string(n); }

std::string random_axes() {
  static const char* const kAxes[] = {"-1", "-1", "-1", "-2", "-2", "-2,-1", "-3,-1", "-3", "-3,-2,-1", "-4,-2", "-4,-3,-1"};
  return kAxes[below(11)];
}

std::string random_view() {
  switch (below(9)) {
    case 0: return "permute:0.2.1";
    case 1: return "permute:1.0";
    case 2: return "slice:-1:" + number(one_of({0, 1, -4})) + ":" + number(one_of({3, 40, -1})) + ":" + number(one_of({1, 2}));
    case 3: return "split:-1:-1:" + number(one_of({1, 2, 3, 4}));
    case 4: return "split:-2:2:-1";
    case 5: return "merge:" + number(one_of({-2, -3}));
    case 6: return "unsqueeze:" + number(one_of({-1, -2, -3}));
    case 7: return "merge:-2,slice:-1:" + number(one_of({2, 3})) + ":15:1,split:-1:-1:3,slice:-1:0:2:1";
    default: return "slice:-2:0:9:1,merge:-2,split:-1:-1:2";
  }
}

// Softmax, a normalization, or the norm of rows, of what some instructions make.
std::string known(const std::string& axes) {
  const std::string input = "input f32 broadcast\n";
  switch (below(4)) {
    case 0:
      return "onnxfuse 2\n" + input + input + "add f32 0 1\nreduce_max f32 2 " + axes +
             "\nsub f32 2 3\nexp f32 4\nreduce_sum f32 5 " + axes + "\ndiv f32 5 6\noutput 7\noutput 6\n";
    case 1:
      return "onnxfuse 2\n" + input + input + "const f32 3c23d70a\nreduce_mean f32 0 " + axes +
             "\nsub f32 0 3\nmul f32 4 4\nreduce_mean f32 5 " + axes +
             "\nadd f32 6 2\nsqrt f32 7\ndiv f32 4 8\nmul f32 9 1\noutput 10\noutput 3\n";
    case 2:
      return "onnxfuse 2\n" + input + input + "const f32 3c23d70a\nadd f32 0 1\nmul f32 3 3\nreduce_sum f32 4 " + axes +
             "\nsqrt f32 5\nmax f32 6 2\ndiv f32 3 7\noutput 8\noutput 3\n";
    default:
      return "onnxfuse 2\n" + input + input + "abs f32 0\nreduce_sum f32 2 " + axes + "\nreduce_max f32 2 " + axes +
             "\nmul f32 3 1\nsub f32 0 4\noutput 5\noutput 6\noutput 3\n";
  }
}

// The words of a text, where they are, and a normalization: numbers that several rows have in common or each its own.
std::string words(const std::string& axes) {
  const std::string type = below(2) == 0 ? "i32" : "i64";
  static const char* const kViews[] = {"broadcast", "view unsqueeze:-1", "slice -1:0:3:1", "view permute:1.0"};
  static const char* const kRows[] = {"", "", " view split:-1:-1:2", " view permute:1.0", " view slice:-1:1:9:2"};
  return "onnxfuse 3\ninput " + type + " " + kViews[below(4)] + "\ninput f32 row 0" + kRows[below(5)] +
         "\ninput f32 broadcast\nadd f32 1 2\nreduce_mean f32 3 " + axes + "\nsub f32 3 4\noutput 5\noutput 3\n";
}

std::string random_program() {
  const std::string axes = random_axes();
  if (below(6) == 0) return words(axes);
  if (below(3) == 0) return known(axes);
  static const char* const kOps[] = {"add", "sub", "mul", "max", "min"};
  static const char* const kUnary[] = {"abs", "neg", "relu", "sigmoid", "tanh"};
  static const char* const kReductions[] = {"reduce_sum", "reduce_mean", "reduce_max", "reduce_min"};
  std::string text = below(4) == 0 ? "onnxfuse 2\ncontract\n" : "onnxfuse 2\n";
  size_t values = 1 + below(3);
  for (size_t i = 0; i < values; ++i) {
    text += below(3) == 0 ? "input f32 view " + random_view() + "\n" : "input f32 broadcast\n";
  }
  if (below(2) == 0) {
    text += "const f32 3f000000\n";
    ++values;
  }
  for (size_t steps = 2 + below(10); steps > 0; --steps, ++values) {
    const auto any = [&] { return number(static_cast<int64_t>(below(2) == 0 ? values - 1 : below(values))); };
    switch (below(6)) {
      case 0:
      case 1:
        text += std::string(kReductions[below(4)]) + " f32 " + any() + " " + axes + "\n";
        break;
      case 2:
        text += std::string(kUnary[below(5)]) + " f32 " + any() + "\n";
        break;
      case 3:
        text += "index f32 " + any() + " " + number(one_of({-1, -2})) + "\n";
        break;
      default:
        text += std::string(kOps[below(5)]) + " f32 " + any() + " " + any() + "\n";
    }
  }
  text += "output " + number(static_cast<int64_t>(values - 1)) + "\n";
  for (size_t more = below(4); more > 0; --more) text += "output " + number(static_cast<int64_t>(below(values))) + "\n";
  return text;
}

std::vector<Shape> random_shapes(const Program& program) {
  Shape space;
  space.rank = 1 + static_cast<int>(below(4));
  for (int d = 0; d < space.rank; ++d) space.dims[static_cast<size_t>(d)] = one_of({1, 2, 3, 4, 7, 12, 17});
  // Long rows, many rows, wide columns; what threads share.
  if (below(4) == 0) space.dims[static_cast<size_t>(space.rank - 1)] = one_of({33, 48, 64, 250, 300, 700, 4500, 9000});
  if (below(6) == 0) space.dims[0] = one_of({100, 1000, 2100});
  if (below(30) == 0) space = below(2) == 0 ? Shape{2, {1, 40000}} : Shape{2, {2, 29990}};
  const size_t any = below(static_cast<size_t>(space.rank));
  if (below(60) == 0) space.dims[any] = one_of({0, 0, INT32_MAX, int64_t{1} << 40, INT64_MAX});
  std::vector<Shape> shapes;
  for (size_t i = 0; i < program.input_count; ++i) {
    Shape shape = space;
    if (i > 0 && below(2) == 0) {
      for (int d = 0; d < shape.rank; ++d) {
        if (below(2) == 0) shape.dims[static_cast<size_t>(d)] = 1;
      }
    }
    shapes.push_back(shape);
  }
  if (!names_rows(program) || below(20) == 0) return shapes;
  for (const int axis : program.axes) {
    if (shapes[0].rank >= -axis) shapes[0].dims[static_cast<size_t>(shapes[0].rank + axis)] = 1;
  }
  if (shapes[1].rank < kMaxRank) {
    std::copy_backward(shapes[1].dims.begin(), shapes[1].dims.begin() + shapes[1].rank,
                       shapes[1].dims.begin() + shapes[1].rank + 1);
    ++shapes[1].rank;
    shapes[1].dims[0] = one_of({1, 4, 5, 9, 0});
  }
  return shapes;
}

void check_results(const Program& program, const NestPlan& plan, const std::vector<Shape>& values) {
  std::vector<std::unique_ptr<float[]>> memory;
  std::vector<const void*> inputs;
  std::vector<Doubles> numbers;
  for (const Shape& shape : plan.key.shapes) {
    const auto count = static_cast<size_t>(count_of(shape));
    memory.push_back(std::make_unique<float[]>(count));
    for (size_t k = 0; k < count; ++k) memory.back()[k] = static_cast<float>(below(17)) / 8.0f - 1.0f;
    inputs.push_back(memory.back().get());
    numbers.emplace_back(memory.back().get(), memory.back().get() + count);
  }
  std::vector<void*> outputs;
  for (const Shape& shape : plan.output_shapes) {
    const auto count = static_cast<size_t>(count_of(shape));
    const size_t before = below(4) == 0 ? below(16) : 0;  // or all would begin at the same multiple
    memory.push_back(std::make_unique<float[]>(before + count));
    float* const output = memory.back().get() + before;
    std::fill_n(output, count, NAN);
    outputs.push_back(output);
  }
  run_nest(plan, inputs.data(), outputs.data(), fuzz::kHost);
  Reference reference(program, plan.key.shapes, values, numbers);
  const std::vector<Doubles> wanted = reference.run();
  for (size_t o = 0; o < wanted.size(); ++o) {
    const auto* const actual = static_cast<const float*>(outputs[o]);
    for (size_t i = 0; i < wanted[o].size(); ++i) {
      const double exact = wanted[o][i];
      if (std::abs(exact) > 1e30 || reference.largest() > 1e30) continue;
      const bool same = std::isfinite(exact) ? std::abs(actual[i] - exact) <= 1e-4 * reference.largest()
                                             : std::isnan(exact) == std::isnan(actual[i]);
      expect(same, "a wrong result");
    }
  }
}

// Memory of exactly their sizes for the inputs, with numbers of rows that may not be there, and what is gathered of it.
void check_named_rows(const Program& program, const std::vector<Shape>& shapes, const std::vector<Shape>& values) {
  std::vector<std::unique_ptr<char[]>> memory;
  std::vector<const void*> inputs;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const size_t size = storage_size(program.values[i].type);
    const auto count = static_cast<size_t>(count_of(shapes[i]));
    memory.push_back(std::make_unique<char[]>(count * size));
    for (size_t k = 0; k < count; ++k) {
      const auto number = static_cast<int64_t>(below(9)) - 4;
      const auto narrow = static_cast<int32_t>(number);
      const auto real = static_cast<float>(k);
      const DType type = program.values[i].type;
      const void* const from = type == DType::i64 ? static_cast<const void*>(&number) : &narrow;
      std::memcpy(memory.back().get() + k * size, type == DType::f32 ? &real : from, size);
    }
    inputs.push_back(memory.back().get());
  }
  const Shape& numbers = values[0];
  const int64_t rows = shapes[1].dims[0];
  bool is_there = true;
  std::vector<int64_t> named;
  View view;
  std::string error;
  expect(input_view(program.values[0], shapes[0], &view, &error), "numbers that do not fit");
  for (int64_t i = 0; i < count_of(values[1]); ++i) {
    const auto place = static_cast<int64_t>(place_in(numbers, values[1], i));
    int64_t at = view.offset, rest = place;
    for (int d = numbers.rank; d-- > 0; rest /= numbers.dims[static_cast<size_t>(d)]) {
      at += rest % numbers.dims[static_cast<size_t>(d)] * view.strides[static_cast<size_t>(d)];
    }
    const bool wide = program.values[0].type == DType::i64;
    const int64_t number = wide ? static_cast<const int64_t*>(inputs[0])[at] : static_cast<const int32_t*>(inputs[0])[at];
    named.push_back(number < 0 ? number + rows : number);
    is_there = is_there && named.back() >= 0 && named.back() < rows;
  }
  try {
    const NamedRows gathered(fuzz::kHost, program, {shapes}, inputs.data());
    expect(is_there, "a row that there is not");
    expect(gathered.key().shapes[1] == values[1], "rows of another shape");
    expect(input_view(program.values[1], shapes[1], &view, &error), "rows that do not fit");
    const int64_t step = rows == 0 ? 0 : count_of(shapes[1]) / rows;
    for (size_t i = 0; i < named.size(); ++i) {
      const auto place = static_cast<int64_t>(place_in(view.shape, values[1], static_cast<int64_t>(i)));
      int64_t at = named[i] * step + view.offset, rest = place;
      for (int d = view.shape.rank; d-- > 0; rest /= view.shape.dims[static_cast<size_t>(d)]) {
        at += rest % view.shape.dims[static_cast<size_t>(d)] * view.strides[static_cast<size_t>(d)];
      }
      expect(static_cast<const float*>(inputs[1])[i] == static_cast<float>(at), "an element of another row");
    }
  } catch (const Error&) {
    expect(!is_there, "rows that are there are refused");
  }
}

void check_program() {
  const bool long_rows = below(2) == 0;
  const RowProgram rows(kMost);
  std::string text = long_rows ? rows.text() : random_program();
  const bool spoilt = below(long_rows ? 20 : 5) == 0;
  if (spoilt) fuzz::spoil(&text, "0123456789 \n-:,._reducsplitmgow");
  Program program;
  std::string error;
  if (!parse_program(text, &program, &error, Reads::Reductions)) return expect_reason(error);
  const std::vector<Shape> shapes =
      long_rows && rows.shapes().size() == program.input_count ? rows.shapes() : random_shapes(program);
  if (names_rows(program)) {
    std::vector<Shape> values;
    const auto fits = [](const Shape& shape) { return count_of(shape, kMost) >= 0; };
    if (!resolve_shapes(program, shapes, &values, &error)) {
      expect_reason(error);
    } else if (!spoilt && std::all_of(shapes.begin(), shapes.end(), fits) && std::all_of(values.begin(), values.end(), fits)) {
      check_named_rows(program, shapes, values);
    }
    return;
  }
  const Program made = with_reciprocals(program);
  NestPlan plan;
  if (!make_nest_plan(made, {shapes}, &plan, &error)) return expect_reason(error);
  std::vector<Shape> values;
  expect(resolve_shapes(program, shapes, &values, &error), "a plan for shapes that do not fit");
  const auto is_large = [](const Shape& shape) { return count_of(shape, kMost) < 0; };
  if (std::any_of(shapes.begin(), shapes.end(), is_large) || std::any_of(values.begin(), values.end(), is_large)) return;
  const auto is_float = [](const Value& value) {
    return value.type == DType::f32 && !value.swaps_halves && !value.along_axis;
  };
  if (spoilt || !std::all_of(program.values.begin(), program.values.end(), is_float)) return;
  check_results(program, plan, values);
}

}  // namespace

int main(int argc, char** argv) { return fuzz::run(argc, argv, check_program); }
