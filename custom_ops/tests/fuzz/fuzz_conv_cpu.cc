// Fuzzing of convolutions on the CPU: how they are cut into strips for any attributes and shapes, and what comes out.
//
//   fuzz_conv_cpu [runs] [seed]
// Every run makes a node and shapes (fuzz_conv_nodes.h).  Where a plan is small enough it runs on memory of exactly the
// size, so that AddressSanitizer sees one element too many, and its results are held against plain sums.  X and W are
// small integers: all orders of the sums give the same.  A product is a convolution whose filters are the rows of A.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nodes/conv/conv_cpu.h"
#include "platform/error.h"
#include "tests/fuzz/fuzz_conv_nodes.h"
#include "tests/fuzz/fuzz_tensors.h"

namespace {

using namespace onnxfuse;
using fuzz::below;
using fuzz::expect;
using fuzz::integers;
using fuzz::memory_of;
using fuzz::one_of;
using fuzz::plain_sums;

int64_t count_of(const Shape& shape) {
  int64_t count = 0;
  expect(element_count(shape, &count), "a tensor of too many elements");
  return count;
}

// Operands are ones, which the prologue adds to X, and the epilogue to the result.
void check_results(const ConvCpuPlan& plan, const ConvNode& node, const std::vector<Shape>& inputs) {
  const size_t image = node.attributes.channels_last ? 1 : 0;
  const int64_t pixels = count_of(inputs[image]);
  const auto x = integers(pixels);
  const auto w = integers(count_of(inputs[1 - image]));
  const int64_t count = count_of(plan.geometry.output);
  std::vector<std::unique_ptr<float[]>> memory;
  std::vector<const void*> prologue{x.get()};
  std::vector<const void*> epilogue{nullptr};
  std::vector<void*> outputs;
  for (size_t i = 2; i < inputs.size(); ++i) {
    memory.push_back(memory_of(count_of(inputs[i])));
    std::fill_n(memory.back().get(), count_of(inputs[i]), 1.0f);
    (i < 2 + node.prologue_operands() ? prologue : epilogue).push_back(memory.back().get());
  }
  const auto read = memory_of(pixels);
  const auto added_first = static_cast<float>(plan.prologue == nullptr ? 0 : node.prologue_operands());
  const auto add = [added_first](float value) { return value + added_first; };
  std::transform(x.get(), x.get() + pixels, read.get(), add);
  const auto wanted = plain_sums(plan.geometry, read.get(), w.get());
  const bool has_epilogue = plan.epilogue.plan != nullptr;
  for (size_t o = 0; o < (has_epilogue ? node.epilogue.outputs.size() : 1); ++o) {
    memory.push_back(memory_of(count));
    std::fill_n(memory.back().get(), count, -1e9f);
    outputs.push_back(memory.back().get());
  }
  const ConvTensors tensors{x.get(), w.get(), prologue.data(), epilogue.data(), outputs.data(), false};
  run_conv_cpu(plan, tensors, fuzz::kHost);
  for (size_t o = 0; o < outputs.size(); ++o) {
    const auto added = static_cast<float>(has_epilogue && o == 0 ? node.epilogue_operands() : 0);
    for (int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<size_t>(i);
      expect(static_cast<const float*>(outputs[o])[at] == wanted[at] + added, "a wrong result");
    }
  }
}

void check_node() {
  const bool multiplies = below(8) == 0;
  fuzz::Attributes attributes = multiplies ? fuzz::product_attributes() : fuzz::random_attributes();
  if (!multiplies && !attributes.spoilt && below(4) == 0) fuzz::make_depthwise(one_of({8, 16, 17, 33, 40}), &attributes);
  ConvNode node;
  std::string error;
  if (!read_conv_node(attributes.source(), 2 + attributes.operands[0] + attributes.operands[1], &node, &error)) return;
  const std::vector<Shape> inputs = fuzz::random_shapes(node);
  ConvShapes shapes;
  if (!resolve_conv_node(node, inputs, &shapes, &error)) return;
  const ConvGeometry g = shapes.geometry.channels_last ? image_of_product(shapes.geometry) : shapes.geometry;
  std::shared_ptr<const ConvCpuPlan> plan;
  try {
    const Program* const prologue = node.has_prologue ? &node.prologue : nullptr;
    plan = make_conv_cpu_plan(node, node.type, prologue, node.epilogue, {inputs}, shapes);
  } catch (const Error& refused) {
    expect(std::string(refused.what()).find("needs more than") != std::string::npos, "refused for no reason");
    return;
  }
  expect((plan == nullptr) == (count_of(g.output) == 0), "a plan for nothing, or none");
  if (plan == nullptr || count_of(g.output) > 200'000 || count_of(inputs[0]) > 200'000) return;
  const int64_t taps = g.kernel[0] * g.kernel[1] * g.kernel[2];
  const int64_t of_input = g.out_channels / g.group * taps;
  if (count_of(inputs[0]) * of_input > 3'000'000 || count_of(inputs[1]) > 200'000) return;
  check_results(*plan, node, inputs);
}

}  // namespace

int main(int argc, char** argv) { return fuzz::run(argc, argv, check_node); }
