// The recipe of an attention: which kernels its machine code holds, and what each of them takes.
//
//   onnxfuse-cuda-attention 1
//   source <64 hex digits>
//   kernel <name> family <tensor|simt|any> type <f32|f16|bf16> reads <-|m|c|mc> zeros <0|1> rows <R> keys <K> size <D>
//       columns <C> block <threads> vector <V> split <S>          (all in one line)
//   …
//
// A kernel that up to S > 1 blocks share the keys of is two: NAME leaves the parts and NAME_sum joins them.
// onnxfuse/cuda/attention/recipe.py has the same in Python.
#ifndef ONNXFUSE_CUDA_ATTENTION_RECIPE_H_
#define ONNXFUSE_CUDA_ATTENTION_RECIPE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nodes/attention/attention.h"
#include "program/dtype.h"

namespace onnxfuse::cuda {


struct AttentionKernel {
  std::string name;
  uint32_t rows = 1;     // of Q, of a block
  uint32_t keys = 1;     // at a time
  uint32_t size = 0;     // of the largest heads of Q and K; 0 for any
  uint32_t columns = 1;  // of the result, of a block
  uint32_t block = 32;   // threads
  uint32_t vector = 1;   // neighbouring elements that are read at once
  uint32_t split = 1;    // blocks that may share the keys of a row
  size_t function = 0;   // its number among all functions; that of the sum follows

  std::string sum_name() const { return name + "_sum"; }
};

struct AttentionRecipe {
  std::string source;  // SHA-256 of the kernels' source text
  DType type = DType::f32;
  std::vector<AttentionKernel> kernels;
};

// Reads and validates the recipe of a node.  On failure returns false and sets `error` to one line that names the line of
// the text; nothing in `text` is trusted.
bool parse_attention_recipe(std::string_view text, const Attention& node, AttentionRecipe* recipe, std::string* error);

}  // namespace onnxfuse::cuda

#endif  // ONNXFUSE_CUDA_ATTENTION_RECIPE_H_
