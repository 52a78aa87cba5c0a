#include "cuda/launch/cuda_tiles.h"

#include <algorithm>

#include "platform/integers.h"

namespace onnxfuse::cuda {
namespace {

// Whether a kernel that has `letter` for an operand can take it, with rows along this dimension.
bool accepts_tiled(const RecipeKernel& kernel, char letter, const Operand& operand, const IterationSpace& space,
                   size_t rows, Indexing* indexing) {
  const int64_t step = operand.strides.back();
  *indexing = Indexing{};
  switch (letter) {
    case 's':
      return operand.access == 's';
    case 't':
      return operand.strides[rows] == 1 && step != 0 && step != 1 &&
             has_groups(kernel.vector, operand, space, rows, &indexing->contiguous);
    default:
      return (letter == 'g' || operand.access == 'l') &&
             has_groups(kernel.vector, operand, space, space.dims.size() - 1, &indexing->contiguous);
  }
}

}  // namespace

bool tile_space(const RecipeKernel& kernel, const IterationSpace& space, Tiles* tiles, std::vector<Indexing>* indexing) {
  const std::vector<int64_t>& steps = space.operands[kernel.access.find('t')].strides;
  const auto found = std::find(steps.rbegin(), steps.rend(), 1);
  if (found == steps.rbegin() || found == steps.rend()) return false;
  const size_t columns = space.dims.size() - 1;
  const size_t rows = columns - static_cast<size_t>(found - steps.rbegin());
  if (std::min(space.dims[columns], space.dims[rows]) * 2 < kernel.tile) return false;
  for (size_t k = 0; k < space.operands.size(); ++k) {
    if (!accepts_tiled(kernel, kernel.access[k], space.operands[k], space, rows, &(*indexing)[k])) return false;
  }
  tiles->columns = divide_up(space.dims[columns], int64_t{kernel.tile});
  tiles->rows = divide_up(space.dims[rows], int64_t{kernel.tile});
  tiles->blocks = tiles->columns * tiles->rows;
  tiles->order = {columns, rows};
  for (size_t d = columns; d-- > 0;) {
    if (d == rows) continue;
    tiles->order.push_back(d);
    tiles->blocks *= space.dims[d];
  }
  return true;
}

}  // namespace onnxfuse::cuda
