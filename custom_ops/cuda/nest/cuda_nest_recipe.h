// The recipe of a fused node that reduces: which kernels its machine code holds, and which tensors each of them takes.
//
//   onnxfuse-cuda-rows 1
//   source <64 hex digits>
//   kernel <name> along <rows|columns> threads <T> items <N> vector <V> block <B> index <32|64> steps <S>
//       access <letters of inputs>:<of indices>:<of outputs> [tile <R>]                         (in one line)
//   …
//
// The kernels are tried in order.  An access letter says how an operand is indexed by r, the number of an element of a row:
//   s  one element a row
//   l  a step that is the same for all r, and 1 along rows
//   b  strides over the row's dimensions, of which the innermost has one element; of kernels along rows, and not of outputs
//   g  strides over the row's dimensions
// A kernel of a tile of R rows, one for each place along the outermost of the dimensions that count rows, has large letters
// for inputs and indices that are the same for all of these.
#ifndef ONNXFUSE_CUDA_NEST_RECIPE_H_
#define ONNXFUSE_CUDA_NEST_RECIPE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "figures/cuda_nest.h"


namespace onnxfuse::cuda {


struct NestKernel {
  std::string name;
  bool by_columns = false;
  uint32_t threads = 32;  // that share a row, or along columns a group of them
  uint32_t items = 0;     // groups that each of them keeps; 0: the row is read again in each pass
  uint32_t vector = 1;    // neighbours of a group: elements of a row, or rows
  uint32_t block = 32;    // threads
  uint32_t index = 64;    // bits of the kernel's indices
  uint32_t steps = 0;     // functions that are launched one after the other, with rows shared among blocks; 0: one alone
  uint32_t tile = 1;      // rows of a thread
  std::string access;     // a letter for each input, index and output
  size_t function = 0;    // its first one's number among all functions

  // The longest row that it takes; 0 for any.
  int64_t capacity() const { return int64_t{threads} * items * (by_columns ? 1 : vector); }
  // Of each row of a tile.
  int64_t rows_of_block() const { return by_columns ? int64_t{kNestLanes} * vector : block / threads; }
  // Elements of a row that the threads of a block take at once.
  int64_t group() const { return int64_t{threads} * (by_columns ? 1 : vector); }
  std::string function_name(size_t step) const { return steps == 0 ? name : name + "_" + std::to_string(step); }
};

struct NestRecipe {
  std::string source;  // SHA-256 of the kernels' source text
  std::vector<NestKernel> kernels;
};

struct NestOperands {
  size_t inputs;
  size_t indices;
  size_t outputs;
  size_t tables;  // inputs of which rows are named
};

// Reads and validates the recipe of a node with so many operands.  On failure returns false and sets `error` to one line
// that names the line of the text; nothing in `text` is trusted.
bool parse_nest_recipe(std::string_view text, const NestOperands& counts, NestRecipe* recipe, std::string* error);

}  // namespace onnxfuse::cuda

#endif  // ONNXFUSE_CUDA_NEST_RECIPE_H_
