// Fuzzing of what the CUDA operator of attention reads from a model, and of the launches that it plans.
//
//   fuzz_cuda_attention [runs] [seed]
// Every run makes a node, shapes and a recipe, some of them spoilt.  Each launch that comes out of them is held against the
// shapes: every index that its kernel may compute lies in the tensors, and the blocks are all rows, columns and keys.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/attention/cuda_attention_launch.h"
#include "cuda/attention/cuda_attention_recipe.h"
#include "figures/cuda.h"
#include "tests/fuzz/fuzz_attention_nodes.h"

namespace {

using namespace onnxfuse;
using cuda::AttentionCudaPlan;
using cuda::AttentionKernel;
using cuda::AttentionRecipe;
using fuzz::below;
using fuzz::expect;
using fuzz::one_of;

std::string random_recipe(const Attention& node) {
  std::string text = "onnxfuse-cuda-attention 1\nsource " + std::string(64, 'a') + "\n";
  const std::string letters = std::string(node.masked ? "m" : "") + (node.chosen ? "c" : "");
  const char* const type = below(2) == 0 ? "f32" : "f16";
  const auto line = [&](const std::string& family, std::initializer_list<int64_t> sizes) {
    static constexpr const char* kLabels[] = {"rows", "keys", "size", "columns", "block", "vector", "split"};
    text += "kernel k" + std::to_string(text.size()) + " family " + family + " type " + type + " reads " +
            (letters.empty() ? "-" : letters) + " zeros " + (node.masked_as_zero ? "1" : "0");
    size_t label = 0;
    for (const int64_t size : sizes) text += std::string(" ") + kLabels[label++] + " " + std::to_string(size);
    text += "\n";
  };
  for (size_t kernels = below(6); kernels > 0; --kernels) {
    line(below(2) == 0 ? "simt" : "tensor",
         {one_of({64, 16, 8}), one_of({16, 32, 64}), one_of({16, 64, 256, 1024}), one_of({16, 64, 128}), one_of({32, 128}),
          one_of({1, 2, 4, 8}), one_of({1, 2, 64})});
  }
  line("any", {one_of({1, 4}), 1, 0, one_of({32, 128}), 128, 1, one_of({1, 1, 16})});
  return text;
}

// One more than the largest index of a tensor, of so many heads and rows.
__int128 reach(const cuda::PackedHeads& heads, int64_t batch, int64_t count, int64_t rows, int64_t size) {
  if (rows == 0 || size == 0) return 0;
  const auto last = [](int64_t number, int64_t step) { return static_cast<__int128>(number - 1) * step; };
  return heads.begin + last(batch, heads.batch) + last(count, heads.head) + last(rows, heads.row) + size;
}

void check_reach(const Attention& node, const AttentionCudaPlan& plan) {
  const cuda::AttentionParameters& all = plan.parameters;
  const auto fits = [&](size_t input, __int128 elements) {
    int64_t count = 0;
    expect(element_count(plan.key.shapes[input], &count), "a plan for a tensor of too many elements");
    expect(elements <= count, "a kernel would read beyond a tensor");
  };
  fits(0, reach(all.q, all.batch, node.heads, all.queries, all.size));
  fits(1, reach(all.k, all.batch, node.key_heads, all.keys, all.size));
  fits(2, reach(all.v, all.batch, node.key_heads, all.keys, all.value_size));
  expect(reach(all.out, all.batch, node.heads, all.queries, all.value_size) == plan.layout.count, "results that are not all");
  const auto mask = [&](size_t input, const std::array<int64_t, 4>& step, int64_t batches) {
    expect(step[3] == 0 || step[3] == 1, "keys that are not side by side");
    if (all.keys == 0) return;
    fits(input, static_cast<__int128>(batches - 1) * step[0] + (node.heads - 1) * step[1] + (all.queries - 1) * step[2] +
                    (all.keys - 1) * step[3] + 1);
  };
  if (node.masked) mask(3, all.mask, all.mask_batch);
  if (node.chosen) mask(node.choice_input(), all.choices, all.batch);
  expect(int64_t{all.key_heads} * all.group.divisor == node.heads, "heads that are not all");
}

void check_launch(const Attention& node, const AttentionRecipe& recipe, const AttentionCudaPlan& plan) {
  cuda::ContextKernels kernels;
  kernels.multiprocessors = one_of({1, 8, 132});
  std::vector<cuda::CUdeviceptr> addresses(plan.key.shapes.size() + 1);
  for (cuda::CUdeviceptr& address : addresses) address = 256 * below(100) + (below(8) == 0 ? 2 : 0);
  const cuda::AttentionLaunch launch(node, recipe, plan, kernels, addresses);
  expect(launch.workspace_bytes() % sizeof(float) == 0, "a workspace of no floats");
  const int64_t keys = plan.layout.k.length;
  for (const cuda::AttentionCandidate& candidate : plan.candidates) {
    const AttentionKernel& kernel = recipe.kernels[candidate.kernel];
    const auto up = [](int64_t number, int64_t divisor) { return (number - 1) / divisor + 1; };
    const int64_t rows = plan.layout.q.length * (node.heads / node.key_heads);
    const int64_t blocks = up(rows, kernel.rows) * up(plan.layout.v.size, kernel.columns) * node.key_heads;
    expect(candidate.blocks == blocks * plan.layout.result.batch, "blocks that are not all rows and columns");
    expect(kernel.size == 0 || plan.layout.q.size <= kernel.size, "heads that do not fit");
    const auto [splits, chunk] = cuda::attention_splits(kernel, candidate.blocks, keys, kernels.multiprocessors);
    expect(splits >= 1 && splits <= kernel.split, "too many parts");
    if (splits == 1) continue;
    expect((splits - 1) * chunk < keys && splits * chunk >= keys && chunk % kernel.keys == 0, "parts that are not all keys");
    expect(candidate.blocks * splits <= kMaxBlocks, "more blocks than a launch may have");
  }
}

void check_node() {
  const fuzz::Attributes attributes = fuzz::random_attention();
  Attention node;
  std::string error;
  if (!read_attention(attributes.source(), 3 + below(3), &node, &error)) return;
  std::string text = random_recipe(node);
  const bool spoilt = below(3) == 0;
  if (spoilt) fuzz::spoil(&text, "0123456789 \n:-mcfamilysimtensor");
  AttentionRecipe recipe;
  if (!cuda::parse_attention_recipe(text, node, &recipe, &error)) {
    expect(spoilt && !error.empty(), "a good recipe is refused");
    return;
  }
  const auto plan = cuda::make_attention_cuda_plan(node, recipe, {fuzz::random_shapes(node)}, &error);
  if (plan == nullptr) {
    expect(!error.empty(), "refused without a reason");
    return;
  }
  if (plan->layout.count == 0) return;
  check_reach(node, *plan);
  check_launch(node, recipe, *plan);
}

}  // namespace

int main(int argc, char** argv) { return fuzz::run(argc, argv, check_node); }
