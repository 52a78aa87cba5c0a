// The parameters of a launch of a kernel that reduces, as one block of memory laid out as the members of a C struct:
//
//   a device pointer for each tensor: inputs, then outputs; then one to the workspace
//   rows, length, splits, chunk   u32 or u64, the kernel's index type: blocks that share a row take `chunk` elements each
//   NestSpace                     { u32 row_rank, rank; Divider dims[16]; }  a row's dimensions, the innermost first, then
//                                 those that count rows; what is beyond the rank is 1
//   NestSteps for each operand    { index offset, step[16]; }  inputs, indices, outputs; steps in the order of the dims
//   NestTable                     { index rows, step; }  for each input of which rows are named
#ifndef ONNXFUSE_CUDA_NEST_PARAMETERS_H_
#define ONNXFUSE_CUDA_NEST_PARAMETERS_H_

#include <cstddef>
#include <vector>

#include "cuda/driver/cuda_kernels.h"
#include "cuda/nest/cuda_nest_layout.h"
#include "cuda/nest/cuda_nest_recipe.h"

namespace onnxfuse::cuda {

// The places of a kernel's parameters.
struct NestParameters {
  std::vector<Parameter> each;  // in order
  size_t splits = 0;            // where this number is, and the next one
  size_t bytes = 0;
};

NestParameters nest_parameters(const NestKernel& kernel, const NestOperands& counts);

// The block for these tensors.  The pointers, which come first, and what depends on the device are left 0.
std::vector<unsigned char> pack_nest_parameters(const NestKernel& kernel, const NestOperands& counts,
                                                const NestLayout& layout);

// Writes into how many parts rows are cut, and of how many elements these are.
void put_splits(const NestKernel& kernel, int64_t splits, int64_t chunk, unsigned char* place);

// All functions of the recipe's kernels, in its order.
std::vector<KernelSignature> signatures(const NestRecipe& recipe, const NestOperands& counts);

}  // namespace onnxfuse::cuda

#endif  // ONNXFUSE_CUDA_NEST_PARAMETERS_H_
