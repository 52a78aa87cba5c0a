// The parameters of a launch of attention, as one block of memory: device pointers to Q, K, V, the mask and the choices (null
// where there are none), the output and the workspace, then AttentionShape of cuda/device/attention.cuh.
#ifndef ONNXFUSE_CUDA_ATTENTION_PARAMETERS_H_
#define ONNXFUSE_CUDA_ATTENTION_PARAMETERS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/attention/cuda_attention_recipe.h"
#include "cuda/driver/cuda_driver.h"
#include "cuda/driver/cuda_kernels.h"
#include "cuda/launch/cuda_divider.h"
#include "nodes/attention/attention.h"

namespace onnxfuse::cuda {

struct PackedHeads {
  int64_t begin, batch, head, row;
};

struct AttentionParameters {
  std::array<CUdeviceptr, 6> tensors;
  CUdeviceptr workspace;
  PackedHeads q, k, v, out;
  std::array<int64_t, 4> mask, choices;
  int32_t batch, key_heads, queries, keys, size, value_size, mask_batch, splits, chunk;
  uint32_t scale, fill;  // the bits of floats
  uint32_t fills, nan_as_zero;
  Divider32 group;  // heads of Q for each of K and V
};

// For the tensors of a node, without the pointers and the splits.  The sizes have been found to fit.
AttentionParameters pack_attention_parameters(const Attention& node, const AttentionLayout& layout);

// All functions of the recipe's kernels, in its order.
std::vector<KernelSignature> signatures(const AttentionRecipe& recipe);

}  // namespace onnxfuse::cuda

#endif  // ONNXFUSE_CUDA_ATTENTION_PARAMETERS_H_
