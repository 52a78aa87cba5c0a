// The parameters of a kernel launch, as one block of memory laid out as the members of a C struct:
//
//   a device pointer for each operand, to its first element: inputs, then outputs
//   count                      the elements of the space: u32 or u64, the kernel's index type
//   if an operand is transposed: Divider(tiles along columns), Divider(tiles along rows), Space, whose dims are first columns
//   and rows, then Strides for each operand but of letter s; else
//   for each operand, by its letter: i Divider(extent) · o Divider(inner) · c Divider(inner), Divider(extent) · p Divider(run),
//   then the elements between two runs
//   if there is a g or w: Space, then for each such operand Strides
//
//   struct Divider { u32 divisor, multiplier, shift; } or { u64 divisor; }
//   struct Space { u32 rank; Divider dims[16]; }   dims[0] is the innermost dimension; those beyond the rank are 1
//   struct Strides { index step[16]; }             in the order of Space.dims; what steps backwards wraps around
#ifndef ONNXFUSE_CUDA_PARAMETERS_H_
#define ONNXFUSE_CUDA_PARAMETERS_H_

#include <cstddef>
#include <vector>

#include "cuda/driver/cuda_kernels.h"
#include "cuda/launch/cuda_access.h"
#include "cuda/launch/cuda_recipe.h"
#include "cuda/launch/cuda_tiles.h"

namespace onnxfuse::cuda {

struct Parameters {
  std::vector<unsigned char> block;
  std::vector<Parameter> each;  // in order
};

// `indexing` is what accepts() gave for each operand, or with `tiles` what tile_space() did.  The pointers, which come first,
// are left 0.
Parameters pack_parameters(const RecipeKernel& kernel, const IterationSpace& space, const std::vector<Indexing>& indexing,
                           const Tiles& tiles = {});

// The parameters' places and sizes, which do not depend on shapes; the values mean nothing.
Parameters parameter_layout(const RecipeKernel& kernel);

// The recipe's kernels, in its order.
std::vector<KernelSignature> signatures(const Recipe& recipe);

}  // namespace onnxfuse::cuda

#endif  // ONNXFUSE_CUDA_PARAMETERS_H_
