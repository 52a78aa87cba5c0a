// Fuzzing of squeeze-and-excitation gates: attributes and shapes that nobody should trust, and what comes out.
//
//   fuzz_squeeze_excite [runs] [seed]
// Where a run is small enough it happens on memory of exactly the size, so that AddressSanitizer sees one element too
// many, and its results are held against sums in double.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nodes/squeeze_excite/squeeze_excite.h"
#include "tests/fuzz/fuzz_conv_nodes.h"
#include "tests/fuzz/fuzz_tensors.h"

namespace {

using namespace onnxfuse;
using fuzz::below;
using fuzz::count_of;
using fuzz::expect;
using fuzz::expect_reason;
using fuzz::one_of;

constexpr int64_t kMost = 300'000;

std::vector<double> products(const std::vector<double>& input, const float* weights, int64_t batch, int64_t rows,
                             int64_t depth) {
  std::vector<double> sums;
  for (int64_t i = 0; i < batch * rows; ++i) {
    double sum = 0;
    for (int64_t k = 0; k < depth; ++k) {
      sum += weights[i % rows * depth + k] * input[static_cast<size_t>(i / rows * depth + k)];
    }
    sums.push_back(sum);
  }
  return sums;
}

// Operands are ones, which the Programs add to what they read.
void check_results(const SqueezeExcite& node, const SqueezeExcitePlan& plan) {
  std::vector<std::unique_ptr<float[]>> memory;
  std::vector<const void*> inputs;
  for (size_t i = 0; i < plan.key.shapes.size(); ++i) {
    const auto count = static_cast<size_t>(count_of(plan.key.shapes[i], kMost));
    memory.push_back(std::make_unique<float[]>(count));
    const bool is_operand = i > 1 && i != node.excite_weights();
    for (size_t k = 0; k < count; ++k) memory.back()[k] = is_operand ? 1.0f : static_cast<float>(below(9)) - 3.0f;
    inputs.push_back(memory.back().get());
  }
  const auto count = static_cast<size_t>(plan.batch * plan.excited);
  const auto output = std::make_unique<float[]>(count);
  run_squeeze_excite(node, plan, inputs, output.get(), fuzz::kHost);

  const float* const x = memory[0].get();
  std::vector<double> means;
  for (int64_t c = 0; c < plan.batch * plan.channels; ++c) {
    double sum = 0;
    const int64_t first = node.nhwc ? c / plan.channels * plan.channels * plan.size + c % plan.channels : c * plan.size;
    for (int64_t i = 0; i < plan.size; ++i) sum += x[first + i * (node.nhwc ? plan.channels : 1)];
    means.push_back(sum / static_cast<double>(plan.size));
  }
  std::vector<double> squeezed = products(means, memory[1].get(), plan.batch, plan.squeezed, plan.channels);
  for (double& value : squeezed) value += static_cast<double>(node.squeeze.input_count - 1);
  const float* const weights = memory[node.excite_weights()].get();
  const std::vector<double> excited = products(squeezed, weights, plan.batch, plan.excited, plan.squeezed);
  const auto terms = static_cast<double>(plan.channels * plan.squeezed);
  for (size_t i = 0; i < count; ++i) {
    const double wanted = excited[i] + static_cast<double>(node.excite.input_count - 1);
    expect(std::abs(output[i] - wanted) <= 1e-5 * (25 * terms + 25 * static_cast<double>(plan.squeezed) + 1),
           "a wrong result");
  }
}

// Shapes that mostly fit; sometimes of more elements than fit 64 bits.
std::vector<Shape> random_shapes(const SqueezeExcite& node) {
  const auto immense = [] { return one_of({1 << 16, INT32_MAX, int64_t{1} << 40, INT64_MAX}); };
  const auto size_or_immense = [&](int64_t size) { return below(40) == 0 ? immense() : size; };
  Shape x;
  x.rank = below(40) == 0 ? 1 + static_cast<int>(below(3)) : 3 + static_cast<int>(below(3));
  const int64_t channels = size_or_immense(one_of({1, 2, 7, 16, 33, 70, below(20) == 0 ? 0 : 5}));
  const int64_t squeezed = size_or_immense(one_of({1, 3, 4, 8, 17, 31, below(20) == 0 ? 0 : 40}));
  for (int d = 0; d < x.rank; ++d) {
    const int64_t sizes = one_of({1, 2, 3, 7, 16, 31, below(40) == 0 ? 0 : 9});
    x.dims[static_cast<size_t>(d)] = size_or_immense(d == 1 ? channels : d == 0 ? one_of({1, 1, 2, 3, 0}) : sizes);
  }
  const auto weights = [&](int64_t rows, int64_t depth) {
    Shape shape = x;
    std::fill_n(shape.dims.begin(), std::max(x.rank, 2), 1);
    shape.dims[0] = rows;
    shape.dims[1] = depth;
    if (below(60) == 0) shape.dims[below(4)] = one_of({0, 2, 5});
    return shape;
  };
  const int64_t excited = size_or_immense(one_of({1, 5, 8, 33, 64}));
  Shape space = x;
  std::fill_n(space.dims.begin(), 16, 1);
  space.dims[0] = x.dims[0];
  std::vector<Shape> shapes{x, weights(squeezed, x.dims[1])};
  space.dims[1] = squeezed;
  fuzz::add_operands(node.squeeze, space, &shapes);
  shapes.push_back(weights(excited, squeezed));
  space.dims[1] = excited;
  fuzz::add_operands(node.excite, space, &shapes);
  if (node.nhwc && x.rank > 1) {
    std::rotate(shapes[0].dims.begin() + 1, shapes[0].dims.begin() + 2, shapes[0].dims.begin() + x.rank);
  }
  return shapes;
}

void check_node() {
  fuzz::Attributes attributes;
  const size_t operands[2] = {below(3), below(3)};
  attributes.texts["squeeze_program"] = fuzz::random_program(operands[0], below(20) == 0 ? 2 : 1);
  attributes.texts["program"] = fuzz::random_program(operands[1], 1);
  attributes.numbers["nhwc"] = one_of({0, 1});
  attributes.spoilt = below(4) == 0;
  if (attributes.spoilt) fuzz::spoil_text(&attributes.texts[below(2) == 0 ? "program" : "squeeze_program"]);
  SqueezeExcite node;
  std::string error;
  if (!read_squeeze_excite(attributes.source(), 3 + operands[0] + operands[1], &node, &error)) return expect_reason(error);
  SqueezeExcitePlan plan;
  if (!make_squeeze_excite_plan(node, {random_shapes(node)}, &plan, &error)) return expect_reason(error);
  const std::vector<Shape>& shapes = plan.key.shapes;
  if (attributes.spoilt || std::any_of(shapes.begin(), shapes.end(), [](const Shape& s) { return count_of(s, kMost) < 0; })) {
    return;
  }
  if (plan.batch * plan.squeezed * (plan.channels + plan.excited) > 1'000'000) return;
  check_results(node, plan);
}

}  // namespace

int main(int argc, char** argv) { return fuzz::run(argc, argv, check_node); }
