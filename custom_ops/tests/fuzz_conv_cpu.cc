// Fuzzing of convolutions on the CPU: how they are cut into strips for any attributes and shapes, and what comes out.
//
//   fuzz_conv_cpu [runs] [seed]
// Every run makes a node and shapes (fuzz_conv_nodes.h).  Where a plan is small enough it runs on memory of exactly the
// size, so that AddressSanitizer sees one element too many, and its results are held against plain sums.  X and W are
// small integers: all orders of the sums give the same.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "conv_cpu.h"
#include "fuzz_conv_nodes.h"
#include "ort_call.h"

namespace {

using namespace onnxfuse;
using fuzz::below;
using fuzz::expect;
using fuzz::one_of;

// Units backwards: no result may depend on the order.
void parallel_for(void*, void (*function)(void*, size_t), size_t total, void* data) {
  while (total-- > 0) function(data, total);
}

int64_t count_of(const Shape& shape) {
  int64_t count = 0;
  expect(element_count(shape, &count), "a tensor of too many elements");
  return count;
}

std::unique_ptr<float[]> memory_of(int64_t count) { return std::make_unique<float[]>(static_cast<size_t>(count)); }

std::unique_ptr<float[]> integers(int64_t count) {
  auto made = memory_of(count);
  for (int64_t i = 0; i < count; ++i) made[static_cast<size_t>(i)] = static_cast<float>(below(7)) - 3.0f;
  return made;
}

// What place `k` of the kernel adds for element `i` of the input goes to this place of the output, -1 for none.
int64_t place_of(const ConvGeometry& g, size_t d, int64_t i, int64_t k) {
  int64_t place = 0;
  if (g.transposed) {
    place = i * g.strides[d] - g.pads[d] + k * g.dilations[d];
  } else {
    const int64_t distance = i + g.pads[d] - k * g.dilations[d];
    if (distance % g.strides[d] != 0) return -1;
    place = distance / g.strides[d];
  }
  return place >= 0 && place < g.out[d] ? place : -1;
}

// By the definition: every element of the input goes wherever an element of the kernel takes it.
std::unique_ptr<float[]> plain_sums(const ConvGeometry& g, const float* x, const float* w) {
  auto sums = memory_of(count_of(g.output));
  const int64_t channels = g.in_channels / g.group;
  const int64_t filters = g.out_channels / g.group;
  const int64_t taps = g.kernel[0] * g.kernel[1] * g.kernel[2];
  for (int64_t n = 0; n < g.batch; ++n) {
    for (int64_t c = 0; c < g.in_channels; ++c) {
      const int64_t group = c / channels;
      for (int64_t i = 0; i < g.in[0] * g.in[1] * g.in[2]; ++i) {
        const float value = *x++;
        for (int64_t k = 0; k < taps; ++k) {
          const int64_t d = place_of(g, 0, i / g.in[2] / g.in[1], k / g.kernel[2] / g.kernel[1]);
          const int64_t h = place_of(g, 1, i / g.in[2] % g.in[1], k / g.kernel[2] % g.kernel[1]);
          const int64_t v = place_of(g, 2, i % g.in[2], k % g.kernel[2]);
          if (d < 0 || h < 0 || v < 0) continue;
          for (int64_t m = group * filters; m < (group + 1) * filters; ++m) {
            const int64_t filter = g.transposed ? c * filters + m % filters : m * channels + c % channels;
            const int64_t at = (((n * g.out_channels + m) * g.out[0] + d) * g.out[1] + h) * g.out[2] + v;
            sums[static_cast<size_t>(at)] += value * w[filter * taps + k];
          }
        }
      }
    }
  }
  return sums;
}

// Operands are ones, which the prologue adds to X, and the epilogue to the result.
void check_results(const ConvCpuPlan& plan, const ConvNode& node, const std::vector<Shape>& inputs) {
  const auto x = integers(count_of(inputs[0]));
  const auto w = integers(count_of(inputs[1]));
  const int64_t count = count_of(plan.geometry.output);
  std::vector<std::unique_ptr<float[]>> memory;
  ConvTensors tensors{x.get(), w.get(), {x.get()}, {nullptr}, {}};
  for (size_t i = 2; i < inputs.size(); ++i) {
    memory.push_back(memory_of(count_of(inputs[i])));
    std::fill_n(memory.back().get(), count_of(inputs[i]), 1.0f);
    (i < 2 + node.prologue_operands() ? tensors.prologue : tensors.epilogue).push_back(memory.back().get());
  }
  const auto read = memory_of(count_of(inputs[0]));
  const auto added_first = static_cast<float>(plan.prologue == nullptr ? 0 : node.prologue_operands());
  const auto add = [added_first](float value) { return value + added_first; };
  std::transform(x.get(), x.get() + count_of(inputs[0]), read.get(), add);
  const auto wanted = plain_sums(plan.geometry, read.get(), w.get());
  const bool has_epilogue = plan.epilogue.plan != nullptr;
  for (size_t o = 0; o < (has_epilogue ? node.epilogue.outputs.size() : 1); ++o) {
    memory.push_back(memory_of(count));
    std::fill_n(memory.back().get(), count, -1e9f);
    tensors.outputs.push_back(memory.back().get());
  }
  run_conv_cpu(plan, tensors, parallel_for, nullptr);
  for (size_t o = 0; o < tensors.outputs.size(); ++o) {
    const auto added = static_cast<float>(has_epilogue && o == 0 ? node.epilogue_operands() : 0);
    for (int64_t i = 0; i < count; ++i) {
      const auto at = static_cast<size_t>(i);
      expect(static_cast<const float*>(tensors.outputs[o])[at] == wanted[at] + added, "a wrong result");
    }
  }
}

// Groups of single channels, of which vectors take several at once.
void make_depthwise(fuzz::Attributes* attributes) {
  const int64_t group = one_of({8, 16, 17, 33, 40});
  attributes->numbers["group"] = group;
  auto& weights = attributes->lists["weight_shape"];
  weights[0] = group;
  weights[1] = 1;
}

void check_node() {
  fuzz::Attributes attributes = fuzz::random_attributes();
  if (!attributes.spoilt && below(4) == 0) make_depthwise(&attributes);
  ConvNode node;
  std::string error;
  if (!read_conv_node(attributes.source(), 2 + attributes.operands[0] + attributes.operands[1], &node, &error)) return;
  const std::vector<Shape> inputs = fuzz::random_shapes(node);
  ConvShapes shapes;
  if (!resolve_conv_node(node, inputs, &shapes, &error)) return;
  const ConvGeometry& g = shapes.geometry;
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
