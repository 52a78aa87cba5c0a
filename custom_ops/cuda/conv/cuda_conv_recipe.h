// The recipe of a fused convolution: which kernels its machine code holds, and what each of them takes.
//
//   onnxfuse-conv 1
//   source <64 hex digits>
//   kernel <name> family <depthwise|gemm|direct|any> tile <A>x<B>x<C> block <threads> split <S> vector <V>
//       index <32|64> access <letters>;<letters>          (all in one line)
//   …
//
// The kernels are tried in order.  There is an access letter for each operand of the prologue after X, and behind the
// semicolon for each of the epilogue after the result (cuda_conv_layout.h).  A kernel that splits its sum into up to
// S > 1 parts is two: NAME makes the parts and NAME_sum adds them.  onnxfuse/cuda/conv/recipe.py has the same in Python.
#ifndef ONNXFUSE_CUDA_CONV_RECIPE_H_
#define ONNXFUSE_CUDA_CONV_RECIPE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace onnxfuse::cuda {

enum class ConvFamily : uint8_t { Depthwise, Gemm, Direct, Any };

struct ConvKernel {
  std::string name;
  ConvFamily family = ConvFamily::Any;
  std::array<uint32_t, 3> tile{1, 1, 1};  // what a block computes
  uint32_t block = 32;                    // threads
  uint32_t split = 1;
  uint32_t vector = 1;                    // elements of one load or store
  uint32_t index = 64;                    // bits of the kernel's indices
  std::string access;                     // a letter for each operand: the prologue's, then the epilogue's
  size_t function = 0;                    // its number among the recipe's functions
  size_t sum_function = 0;                // of NAME_sum, if it splits

  std::string sum_name() const { return name + "_sum"; }
};

struct ConvRecipe {
  std::string source;  // SHA-256 of the kernels' source text
  std::vector<ConvKernel> kernels;
};

// What a node's Programs have: operands after the first, and outputs.
struct ConvOperandCounts {
  size_t prologue = 0;
  size_t epilogue = 0;
  size_t outputs = 0;
};

// Reads and validates the recipe of a node with so many operands.  On failure returns false and sets `error` to one
// line that names the line of the text; nothing in `text` is trusted.
bool parse_conv_recipe(std::string_view text, const ConvOperandCounts& counts, ConvRecipe* recipe, std::string* error);

}  // namespace onnxfuse::cuda

#endif  // ONNXFUSE_CUDA_CONV_RECIPE_H_
