// The iteration space of a fused node on a GPU, and how each tensor is indexed by the number i of an element of it.
//
// The space is the broadcast of what all inputs read of their tensors.  An access letter says which element of that, counted
// from the first, belongs to i:
//   l  linear    i
//   s  scalar    0
//   i  inner     i mod extent
//   o  outer     i div inner
//   c  channel   (i div inner) mod extent
//   g  general   strides over the dimensions of the space
//   t  transposed  as g, in a kernel that turns tiles of those inputs, and has g, s and l for others (cuda_tiles.h)
//   p  (outputs) as l, but in runs at equal distances: the part of a tensor that is written in parts
//   w  (outputs) as g, written by the elements that have coordinate 0 wherever the output does not step
#ifndef ONNXFUSE_CUDA_ACCESS_H_
#define ONNXFUSE_CUDA_ACCESS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "program/program.h"
#include "program/program_shapes.h"
#include "program/shape.h"

namespace onnxfuse::cuda {

struct Operand {
  char access = 'g';             // the first that fits, of s l i o c g for inputs and l w p for outputs
  int64_t inner = 1;             // of p the elements of a run, and extent those between the begins of two; but for
                                 // g, w and p, i is element (i div inner) mod extent of the operand
  int64_t extent = 1;
  std::vector<int64_t> strides;  // in elements, for each dimension of the space; negative where halves change places
  int64_t offset = 0;            // of the first element in the tensor, in elements
  size_t element_size = 1;       // bytes
};

struct IterationSpace {
  int64_t elements = 1;
  std::vector<int64_t> dims;      // collapsed, from outer to inner; none for a single element
  std::vector<Operand> operands;  // inputs, then outputs; none if there are no elements
  std::vector<Shape> output_shapes;  // of the tensors
};

// False if the inputs' shapes do not fit the program, or an output has elements that the space has not; then `error`
// says why.
bool make_iteration_space(const Program& program, const std::vector<Shape>& inputs, IterationSpace* space,
                          std::string* error);

// Puts the only output where it lies in a tensor that has other parts.  False if it is smaller than the space; then `error`
// says why.
bool place_output(const OutputPart& place, IterationSpace* space, std::string* error);

// How a kernel indexes an operand by a letter of its own, which may be more general than the operand's.
struct Indexing {
  int64_t inner = 1;        // of p the elements of a run
  int64_t extent = 1;       // of p the elements between two runs
  bool contiguous = false;  // a vector is consecutive elements of the operand, else one element of it for all
};

// Whether groups of `vector` elements along a dimension of the space, one of `dims`, are such of the operand, or one element
// of it: then `contiguous` is false.
bool has_groups(uint32_t vector, const Operand& operand, const IterationSpace& space, size_t along, bool* contiguous);

// Whether a kernel that has `letter` for an operand, and handles `vector` elements at once, can take it; the alignment
// of what is contiguous is left to the launch.
bool accepts(char letter, uint32_t vector, const Operand& operand, const IterationSpace& space, Indexing* indexing);

}  // namespace onnxfuse::cuda

#endif  // ONNXFUSE_CUDA_ACCESS_H_
