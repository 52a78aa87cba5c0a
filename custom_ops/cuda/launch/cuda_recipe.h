// The recipe of a fused node: which kernels its machine code holds, and which tensors each of them takes.
//
//   onnxfuse-cuda 2
//   source <64 hex digits>
//   kernel <name> vector <V> block <B> index <32|64> access <letters of inputs>:<letters of outputs> [tile <32|64>]
//   …
//
// A kernel has tiles if, and only if, it transposes an input.  The kernels are tried in order.  An access letter says how an operand is indexed by i, the number of an element of
// the iteration space (cuda_access.h).
#ifndef ONNXFUSE_CUDA_RECIPE_H_
#define ONNXFUSE_CUDA_RECIPE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace onnxfuse::cuda {

struct RecipeKernel {
  std::string name;
  uint32_t vector = 1;  // elements of one load or store
  uint32_t block = 32;  // threads
  uint32_t index = 64;  // bits of the kernel's indices
  std::string access;   // a letter for each input, then for each output
  uint32_t tile = 0;    // of a kernel that transposes: elements of a tile each way
};

struct Recipe {
  std::string source;  // SHA-256 of the kernels' source text
  std::vector<RecipeKernel> kernels;
};

// Reads and validates the recipe of a node with this many inputs and outputs.  On failure returns false and sets
// `error` to one line that names the line of the text; nothing in `text` is trusted.
bool parse_recipe(std::string_view text, size_t inputs, size_t outputs, Recipe* recipe, std::string* error);

// Reads the line of a kernel of so many inputs and outputs; null, or what is wrong with it.
const char* parse_recipe_kernel(std::string_view line, size_t inputs, size_t outputs, RecipeKernel* kernel);

}  // namespace onnxfuse::cuda

#endif  // ONNXFUSE_CUDA_RECIPE_H_
