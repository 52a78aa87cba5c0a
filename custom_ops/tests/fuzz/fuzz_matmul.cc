// Fuzzing of products with constant matrices: attributes and shapes that nobody should trust, and what comes out.
//
//   fuzz_matmul [runs] [seed]
// Where a run is small enough it happens on memory of exactly the size, so that AddressSanitizer sees one element too
// many.  Sums of so few small integers are exact.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "figures/nhwc_kernels.h"
#include "nodes/matmul/matmul.h"
#include "platform/integers.h"
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

constexpr double kMostProducts = 3e6;
constexpr auto kBlock = static_cast<int64_t>(kNhwcBlock);

// The Programs add all that they read.
double wanted_result(const MatMul& node, const NhwcConvPlan& plan, const std::vector<const float*>& inputs,
                     const std::vector<Shape>& operands, int64_t element) {
  const int64_t inner = plan.key.shapes[0].from_back(0);
  const int64_t row = element / node.columns;
  const int64_t column = element % node.columns;
  double sum = 0;
  for (int64_t k = 0; k < inner; ++k) {
    sum += inputs[0][row * inner + k] * inputs[1][(column / kBlock * inner + k) * kBlock + column % kBlock];
  }
  for (size_t i = 0; i < operands.size(); ++i) sum += inputs[i + 2][place_in(operands[i], plan.output, element)];
  return sum;
}

void check_results(const MatMul& node, const NhwcConvPlan& plan) {
  const std::vector<Shape>& shapes = plan.key.shapes;
  std::vector<std::unique_ptr<float[]>> memory;
  std::vector<const void*> inputs;
  std::vector<const float*> elements;
  for (const Shape& shape : shapes) {
    memory.push_back(fuzz::integers(count_of(shape)));
    inputs.push_back(memory.back().get());
    elements.push_back(memory.back().get());
  }
  const int64_t count = count_of(plan.output);
  std::vector<std::unique_ptr<float[]>> results;
  std::vector<void*> outputs;
  while (results.size() < node.conv.epilogue.outputs.size()) {
    results.push_back(fuzz::memory_of(count));
    std::fill_n(results.back().get(), count, -1e9f);
    outputs.push_back(results.back().get());
  }
  run_nhwc_conv(node.conv, plan, inputs, outputs, fuzz::kHost);
  std::vector<Shape> read{plan.output};
  read.insert(read.end(), shapes.begin() + 2, shapes.end());
  std::vector<Shape> operands;
  std::string error;
  expect(resolve_whole_program(node.conv.epilogue, "program", read, &operands, &error), "a plan for shapes that do not fit");
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    expect(results[0][at] == wanted_result(node, plan, elements, operands, i), "a wrong result");
    for (size_t o = 1; o < results.size(); ++o) {
      expect(results[o][at] == wanted_result(node, plan, elements, {}, i), "a wrong product");
    }
  }
}

// Shapes that mostly fit; sometimes of more elements than fit 64 bits.
std::vector<Shape> random_shapes(const MatMul& node) {
  const auto size_of = [](int64_t size) {
    return below(60) == 0 ? one_of({0, 0, 1 << 16, INT32_MAX, int64_t{1} << 40, INT64_MAX}) : size;
  };
  Shape a;
  a.rank = below(60) == 0 ? static_cast<int>(below(2)) : 2 + static_cast<int>(below(3));
  for (int d = 0; d < a.rank; ++d) a.dims[static_cast<size_t>(d)] = size_of(one_of({1, 1, 2, 3, 5, 8}));
  // Every rest of a tile, and units for several threads.
  if (a.rank > 1) a.dims[static_cast<size_t>(a.rank - 2)] = size_of(1 + static_cast<int64_t>(below(below(20) == 0 ? 300 : 40)));
  const int64_t inner = below(30) == 0 ? one_of({600, 1030}) : 1 + static_cast<int64_t>(below(40));
  if (a.rank > 0) a.dims[static_cast<size_t>(a.rank - 1)] = size_of(inner);
  Shape result = a;
  result.rank = std::max(a.rank, 1);
  result.dims[static_cast<size_t>(result.rank - 1)] = node.columns;
  std::vector<Shape> shapes{result};
  fuzz::add_operands(node.conv.epilogue, result, &shapes);
  shapes[0] = a;
  Shape weights{3, {divide_up(node.columns, kBlock), a.from_back(0), kBlock}};
  if (below(40) == 0) weights.dims[below(3)] = one_of({0, 1, 7, 16, INT64_MAX});
  shapes.insert(shapes.begin() + 1, weights);
  return shapes;
}

void check_node() {
  fuzz::Attributes attributes;
  const size_t operands = below(4);
  size_t inputs = 2 + operands;
  std::string& text = attributes.texts["program"] = fuzz::random_program(operands, below(6) == 0 ? 2 : 1);
  if (operands == 2 && below(4) == 0) text = fuzz::program_of_stages();
  for (size_t at = text.find("axis 1"); at != std::string::npos; at = text.find("axis 1")) text.replace(at, 6, "axis -1");
  const std::string valid = text;
  attributes.numbers["columns"] = below(20) == 0 ? one_of({256, 513}) : 1 + static_cast<int64_t>(below(80));
  if (below(4) == 0) {
    switch (below(4)) {
      case 0: attributes.numbers["columns"] = one_of({-1, 0, INT32_MAX, int64_t{1} << 40, INT64_MAX, INT64_MIN}); break;
      case 1: attributes.numbers.erase("columns"); break;
      case 2: inputs = below(7); break;
      default: fuzz::spoil_text(&text);
    }
  }
  MatMul node;
  std::string error;
  if (!read_matmul(attributes.source(), inputs, &node, &error)) return expect_reason(error);
  NhwcConvPlan plan;
  if (!make_matmul_plan(node, {random_shapes(node)}, &plan, &error)) return expect_reason(error);
  const std::vector<Shape>& shapes = plan.key.shapes;
  if (std::any_of(shapes.begin(), shapes.end(), [](const Shape& s) { return count_of(s) < 0; })) return;
  if (count_of(plan.output) < 0 || plan.bytes > size_t{1} << 24) return;
  const double products = static_cast<double>(count_of(plan.output)) * static_cast<double>(shapes[0].from_back(0));
  // A Program that was spoilt may compute anything.
  if (text == valid && products <= kMostProducts) check_results(node, plan);
}

}  // namespace

int main(int argc, char** argv) { return fuzz::run(argc, argv, check_node); }
