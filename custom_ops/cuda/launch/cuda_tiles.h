// How a kernel that transposes divides an iteration space into tiles.
//
// Its columns are the innermost dimension, its rows the one along which the first transposed input has its neighbours.
#ifndef ONNXFUSE_CUDA_TILES_H_
#define ONNXFUSE_CUDA_TILES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/launch/cuda_access.h"
#include "cuda/launch/cuda_recipe.h"

namespace onnxfuse::cuda {

struct Tiles {
  int64_t columns = 1;          // tiles along the columns of the space
  int64_t rows = 1;             // and along its rows
  int64_t blocks = 1;           // all
  std::vector<size_t> order{};  // the space's dimensions as the kernel has them: columns, rows, the others from inner to outer
};

// False if the kernel does not take the space: tiles would be mostly empty, or a vector is not of one piece.
bool tile_space(const RecipeKernel& kernel, const IterationSpace& space, Tiles* tiles, std::vector<Indexing>* indexing);

}  // namespace onnxfuse::cuda

#endif  // ONNXFUSE_CUDA_TILES_H_
