#include "cuda/attention/cuda_attention_parameters.h"

#include <cstring>

#include "figures/cuda_attention.h"

namespace onnxfuse::cuda {
namespace {

PackedHeads packed(const HeadsView& view) {
  return {view.begin, view.batch == 1 ? 0 : view.per_batch, view.per_head, view.per_row};
}

uint32_t bits_of(float number) {
  uint32_t bits = 0;
  std::memcpy(&bits, &number, sizeof(bits));
  return bits;
}

}  // namespace

AttentionParameters pack_attention_parameters(const Attention& node, const AttentionLayout& layout) {
  AttentionParameters all{};
  all.q = packed(layout.q);
  all.k = packed(layout.k);
  all.v = packed(layout.v);
  all.out = packed(layout.result);
  all.out.batch = layout.result.per_batch;
  all.mask = layout.mask;
  all.choices = layout.choices;
  all.batch = static_cast<int32_t>(layout.result.batch);
  all.key_heads = static_cast<int32_t>(node.key_heads);
  all.queries = static_cast<int32_t>(layout.q.length);
  all.keys = static_cast<int32_t>(layout.k.length);
  all.size = static_cast<int32_t>(layout.q.size);
  all.value_size = static_cast<int32_t>(layout.v.size);
  all.mask_batch = static_cast<int32_t>(layout.mask_batch);
  all.splits = 1;
  all.chunk = all.keys;
  all.scale = bits_of(node.scale);
  all.fill = bits_of(node.fill);
  all.fills = node.fills ? 1 : 0;
  all.nan_as_zero = node.nan_as_zero ? 1 : 0;
  all.group = Divider32::of(node.heads / node.key_heads);
  return all;
}

std::vector<KernelSignature> signatures(const AttentionRecipe& recipe) {
  static_assert(sizeof(AttentionParameters) == offsetof(AttentionParameters, q) + 4 * 32 + 2 * 32 + 16 * 4,
                "nothing lies between the parameters");
  std::vector<Parameter> parameters;
  for (size_t p = 0; p < 7; ++p) parameters.push_back({p * sizeof(CUdeviceptr), sizeof(CUdeviceptr)});
  const size_t shape = offsetof(AttentionParameters, q);
  parameters.push_back({shape, sizeof(AttentionParameters) - shape});
  std::vector<KernelSignature> functions;
  for (const AttentionKernel& kernel : recipe.kernels) {
    functions.push_back({kernel.name, kernel.block, parameters});
    if (kernel.split > 1) functions.push_back({kernel.sum_name(), kAttentionSumBlock, parameters});
  }
  return functions;
}

}  // namespace onnxfuse::cuda
