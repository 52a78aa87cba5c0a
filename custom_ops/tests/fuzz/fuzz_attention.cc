// Fuzzing of attention: attributes and shapes that nobody should trust, and what comes out.
//
//   fuzz_attention [runs] [seed]
// Where a run is small enough it happens on memory of exactly the size, so that AddressSanitizer sees one element too
// many, and its results are held against sums in double.
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nodes/attention/attention.h"
#include "tests/fuzz/fuzz_attention_nodes.h"
#include "tests/fuzz/fuzz_tensors.h"

namespace {

using namespace onnxfuse;
using fuzz::below;
using fuzz::count_of;
using fuzz::expect;
using fuzz::expect_reason;
using fuzz::one_of;

constexpr double kMostProducts = 1e6;

const float* row_of(const float* data, const HeadsView& view, int64_t batch, int64_t head, int64_t row) {
  return data + view.begin + batch % view.batch * view.per_batch + head * view.per_head + row * view.per_row;
}

void check_row(const Attention& node, const AttentionPlan& plan, const std::vector<const void*>& inputs,
               const float* output, int64_t batch, int64_t head, int64_t row) {
  const auto data = [&](size_t i) { return static_cast<const float*>(inputs[i]); };
  const int64_t key_head = head / (node.heads / node.key_heads);
  const float* const q = row_of(data(0), plan.q, batch, head, row);
  std::vector<double> weights;
  double largest = -INFINITY;
  bool left = false;  // by the choices or, where there are none, by the mask
  for (int64_t s = 0; s < plan.k.length; ++s) {
    const float* const k = row_of(data(1), plan.k, batch, key_head, s);
    double score = 0;
    for (int64_t c = 0; c < plan.k.size; ++c) score += q[c] * k[c];
    score *= static_cast<double>(node.scale);
    const auto place = [&](int64_t part, const std::array<int64_t, 4>& strides) {
      return part * strides[0] + head * strides[1] + row * strides[2] + s * strides[3];
    };
    if (node.chosen) {
      const bool choice = static_cast<const uint8_t*>(inputs[node.choice_input()])[place(batch, plan.choices)] != 0;
      if (choice == node.fills) score = static_cast<double>(node.fill);
      left = left || choice != node.fills;
    }
    if (node.masked) {
      const float mask = data(3)[place(node.windows > 0 ? batch % node.windows : batch, plan.mask)];
      score += mask;
      left = left || (!node.chosen && !(mask <= -FLT_MAX));
    }
    largest = std::max(largest, score);
    weights.push_back(score);
  }
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - largest);
  const float* const result = row_of(output, plan.result, batch, head, row);
  for (int64_t i = 0; i < plan.v.size; ++i) {
    double wanted = 0;
    for (int64_t s = 0; s < plan.k.length; ++s) {
      wanted += weights[static_cast<size_t>(s)] * row_of(data(2), plan.v, batch, key_head, s)[i];
    }
    if (node.masked_as_zero && (node.chosen || node.masked) && !left) {
      expect(result[i] == 0, "a number of nothing");
    } else if (std::isnan(sum)) {  // of an infinite fill
      expect(node.nan_as_zero ? result[i] == 0 : std::isnan(result[i]), "a number of none");
    } else {
      expect(std::abs(result[i] - (sum > 0 ? wanted / sum : 0)) <= 1e-4, "a wrong result");
    }
  }
}

void check_results(const Attention& node, const AttentionPlan& plan) {
  std::vector<std::unique_ptr<float[]>> memory;
  std::unique_ptr<uint8_t[]> choices;
  std::vector<const void*> inputs;
  for (const Shape& shape : plan.key.shapes) {
    const auto count = static_cast<size_t>(count_of(shape));
    if (node.chosen && inputs.size() == node.choice_input()) {
      choices = std::make_unique<uint8_t[]>(count);
      for (size_t k = 0; k < count; ++k) choices[k] = below(3) == 0 ? 1 : 0;
      inputs.push_back(choices.get());
      continue;
    }
    memory.push_back(std::make_unique<float[]>(count));
    for (size_t k = 0; k < count; ++k) memory.back()[k] = static_cast<float>(below(5)) - 2.0f;
    inputs.push_back(memory.back().get());
  }
  const auto output = std::make_unique<float[]>(static_cast<size_t>(plan.count));
  run_attention(node, plan, inputs, output.get(), fuzz::kHost);
  if (plan.count == 0) return;
  for (int64_t batch = 0; batch < plan.result.batch; ++batch) {
    for (int64_t head = 0; head < node.heads; ++head) {
      for (int64_t row = 0; row < plan.q.length; ++row) check_row(node, plan, inputs, output.get(), batch, head, row);
    }
  }
}

void check_node() {
  const fuzz::Attributes attributes = fuzz::random_attention();
  Attention node;
  std::string error;
  if (!read_attention(attributes.source(), 2 + below(5), &node, &error)) return expect_reason(error);
  AttentionPlan plan;
  if (!make_attention_plan(node, {fuzz::random_shapes(node)}, &plan, &error)) return expect_reason(error);
  const std::vector<Shape>& shapes = plan.key.shapes;
  if (std::any_of(shapes.begin(), shapes.end(), [](const Shape& s) { return count_of(s) < 0; })) return;
  const double sizes = static_cast<double>(plan.k.length) + static_cast<double>(plan.k.size);
  const double products = static_cast<double>(plan.count) * sizes;
  if (products <= kMostProducts) check_results(node, plan);
}

}  // namespace

int main(int argc, char** argv) { return fuzz::run(argc, argv, check_node); }
