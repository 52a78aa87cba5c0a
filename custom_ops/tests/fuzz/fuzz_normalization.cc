// Fuzzing of normalizations: attributes and shapes that nobody should trust, and what comes out.
//
//   fuzz_normalization [runs] [seed]
// Where a run is small enough it happens on memory of exactly the size, so that AddressSanitizer sees one element too
// many, and its results are held against sums in double.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nodes/normalization/normalization.h"
#include "program/program_shapes.h"
#include "tests/fuzz/fuzz_conv_nodes.h"
#include "tests/fuzz/fuzz_tensors.h"

namespace {

using namespace onnxfuse;
using fuzz::below;
using fuzz::count_of;
using fuzz::expect;
using fuzz::expect_reason;
using fuzz::one_of;
using fuzz::place_in;

// What is normalized: the Programs add all that they read.  Sums of so few small integers are exact.
std::vector<double> sums_of_inputs(const Normalization& node, const NormalizationPlan& plan,
                                   const std::vector<const void*>& inputs) {
  const auto& shapes = plan.key.shapes;
  std::vector<Shape> read(shapes.begin(), shapes.begin() + static_cast<ptrdiff_t>(node.scale()));
  if (node.has_program) {
    std::vector<Shape> values;
    std::string error;
    expect(resolve_shapes(node.program, read, &values, &error), "a plan for shapes that do not fit");
    // Vectors along an axis have the shapes in which they broadcast.
    read.assign(values.begin(), values.begin() + static_cast<ptrdiff_t>(read.size()));
  }
  std::vector<double> sums(static_cast<size_t>(plan.rows * plan.size));
  for (size_t r = 0; r < read.size(); ++r) {
    const auto* const input = static_cast<const float*>(inputs[r]);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += input[place_in(read[r], plan.output, static_cast<int64_t>(i))];
  }
  return sums;
}

void check_row(const Normalization& node, size_t size, const double* row, const std::vector<const void*>& inputs,
               const float* result) {
  const auto vector = [&](size_t i) { return static_cast<const float*>(inputs[i]); };
  double mean = 0;
  if (node.centered) {
    for (size_t i = 0; i < size; ++i) mean += row[i] / static_cast<double>(size);
  }
  double variance = 0;
  for (size_t i = 0; i < size; ++i) variance += (row[i] - mean) * (row[i] - mean) / static_cast<double>(size);
  const double deviation = std::sqrt(variance + static_cast<double>(node.epsilon));
  for (size_t i = 0; i < size; ++i) {
    double wanted = (row[i] - mean) / deviation * vector(node.scale())[i];
    if (node.has_bias) wanted += vector(node.bias())[i];
    expect(std::abs(result[i] - wanted) <= 1e-4 * (1 + std::abs(wanted)), "a wrong result");
  }
}

void check_results(const Normalization& node, const NormalizationPlan& plan, bool spoilt) {
  std::vector<std::unique_ptr<float[]>> memory;
  std::vector<const void*> inputs;
  for (const Shape& shape : plan.key.shapes) {
    const auto count = static_cast<size_t>(count_of(shape));
    memory.push_back(std::make_unique<float[]>(count));
    // Far from zero, the squares' mean without the mean's square would be wrong.
    const auto least = static_cast<float>(inputs.empty() ? one_of({-3, -3, 100}) : -3);
    for (size_t k = 0; k < count; ++k) memory.back()[k] = static_cast<float>(below(9)) + least;
    inputs.push_back(memory.back().get());
  }
  const auto count = static_cast<size_t>(plan.rows * plan.size);
  const auto output = std::make_unique<float[]>(count);
  const auto normalized = node.keeps ? std::make_unique<float[]>(count) : nullptr;
  std::fill_n(output.get(), count, NAN);
  run_normalization(node, plan, inputs, output.get(), normalized.get(), fuzz::kHost);
  if (spoilt || count == 0) return;
  const std::vector<double> sums = sums_of_inputs(node, plan, inputs);
  expect(!node.keeps || std::equal(sums.begin(), sums.end(), normalized.get()), "a wrong result of the program");
  const auto size = static_cast<size_t>(plan.size);
  for (size_t i = 0; i < count; i += size) check_row(node, size, &sums[i], inputs, output.get() + i);
}

// Shapes that mostly fit; sometimes of more elements than fit 64 bits.
std::vector<Shape> random_shapes(const Normalization& node) {
  const auto size_of = [](int64_t size) {
    return below(60) == 0 ? one_of({0, 0, 0, 1 << 16, INT32_MAX, int64_t{1} << 40, INT64_MAX}) : size;
  };
  Shape x;
  x.rank = below(60) == 0 ? 0 : 1 + static_cast<int>(below(4));
  // Rests of every length; or else more elements than any instruction set adds up without a break.
  int64_t size = 1 + static_cast<int64_t>(below(100));
  if (below(20) == 0) size = one_of({1024, 1031, 2048, 4096, 4111, 8200});
  for (int d = 0; d + 1 < x.rank; ++d) x.dims[static_cast<size_t>(d)] = size_of(one_of({1, 1, 2, 3, 5, 16}));
  // Rows for several tasks.
  if (x.rank > 1 && size <= 100 && below(4) == 0) x.dims[0] = one_of({200, 301, 640});
  if (x.rank > 0) x.dims[static_cast<size_t>(x.rank - 1)] = size_of(size);
  std::vector<Shape> shapes{x};
  Shape space = x;
  space.rank = std::max(x.rank, 1);
  if (node.has_program) {
    fuzz::add_operands(node.program, space, &shapes);
    // It need not be the first input that has the shape of the result.
    const size_t other = below(shapes.size());
    const auto& values = node.program.values;
    if (!values[0].along_axis && !values[other].along_axis) std::swap(shapes[0], shapes[other]);
  }
  for (size_t i = node.scale(); i <= (node.has_bias ? node.bias() : node.scale()); ++i) {
    shapes.push_back({1, {x.from_back(0)}});
    if (below(60) == 0) shapes.back() = {static_cast<int>(below(3)), {one_of({0, 1, 2, 5}), x.from_back(0)}};
  }
  return shapes;
}

std::string random_program(size_t operands) {
  if (operands != 2 || below(2) == 0) return fuzz::random_program(operands, below(20) == 0 ? 2 : 1);
  return fuzz::program_of_stages();
}

void check_node() {
  fuzz::Attributes attributes;
  const bool has_program = below(3) != 0;
  const size_t operands = has_program ? below(4) : 0;
  size_t inputs = 2 + operands + below(2);
  if (has_program) attributes.texts["program"] = random_program(operands);
  attributes.numbers["centered"] = one_of({0, 1});
  attributes.numbers["keeps"] = has_program ? one_of({0, 1}) : 0;
  attributes.numbers["epsilon_bits"] = one_of({0x3727c5ac, 0x358637bd, 0x2b8cbccc, 0x3f800000});
  bool spoilt_program = false;
  if (below(4) == 0) {
    attributes.spoilt = true;
    static const char* const kNumbers[] = {"centered", "keeps", "epsilon_bits"};
    const char* const name = kNumbers[below(3)];
    switch (below(5)) {
      case 0: attributes.numbers[name] = one_of({-1, 0, 1, 2, INT32_MAX, int64_t{1} << 40, INT64_MIN}); break;
      // Among them negative numbers, those that are not finite, and those that only just are.
      case 1: attributes.numbers["epsilon_bits"] = static_cast<int64_t>(fuzz::g_random() >> 31); break;
      case 2: attributes.numbers.erase(name); break;
      case 3: inputs = below(7); break;
      default:
        spoilt_program = true;
        if (has_program && below(4) != 0) {
          fuzz::spoil_text(&attributes.texts["program"]);
        } else {
          std::string& text = attributes.texts["program"];
          for (size_t bytes = below(100); bytes > 0; --bytes) text += static_cast<char>(fuzz::g_random());
        }
    }
  }
  Normalization node;
  std::string error;
  if (!read_normalization(attributes.source(), inputs, &node, &error)) return expect_reason(error);
  NormalizationPlan plan;
  if (!make_normalization_plan(node, {random_shapes(node)}, &plan, &error)) return expect_reason(error);
  const std::vector<Shape>& shapes = plan.key.shapes;
  if (std::any_of(shapes.begin(), shapes.end(), [](const Shape& s) { return count_of(s) < 0; })) return;
  // A Program that was spoilt may read elements that are not float32.
  if (!spoilt_program) check_results(node, plan, attributes.spoilt);
}

}  // namespace

int main(int argc, char** argv) { return fuzz::run(argc, argv, check_node); }
