// The rows of a fused node that reduces, and how each tensor is indexed by a row and the number r of an element of it.
//
// The space is the broadcast of all values.  The dimensions that are reduced are those of a row; the others count the rows.
#ifndef ONNXFUSE_CUDA_NEST_LAYOUT_H_
#define ONNXFUSE_CUDA_NEST_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/nest/cuda_nest_recipe.h"
#include "program/program.h"
#include "program/shape.h"

namespace onnxfuse::cuda {

struct NestOperand {
  int64_t offset = 0;            // of its first element
  std::vector<int64_t> steps;    // in elements, for each of the layout's dimensions; 0 where it is broadcast
  size_t element_bits = 0;       // 0 of an index, whose elements are numbers and in no memory
  size_t bytes = 0;              // of the tensor
  bool is_output = false;
  int64_t table = -1;            // rows that another operand names, of which this one is the first; -1: none are
  int64_t table_step = 0;        // elements from one of them to the next
};

struct NestLayout {
  int64_t rows = 1;
  int64_t length = 1;
  size_t row_rank = 0;
  std::vector<int64_t> dims;  // those of a row, the innermost first, then those that count rows; collapsed
  std::vector<NestOperand> operands;  // inputs, indices, outputs
  std::vector<Shape> output_shapes;   // of the tensors
};

// How many operands a Program has.
NestOperands nest_operands(const Program& program);

// False if the inputs' shapes do not fit the program; then `error` says why.
bool make_nest_layout(const Program& program, const std::vector<Shape>& inputs, NestLayout* layout, std::string* error);

// Whether a kernel can take such tensors.  Sets for each operand but indices the bits of its address that must be 0.
bool accepts(const NestKernel& kernel, const NestLayout& layout, std::vector<uintptr_t>* misaligned);

}  // namespace onnxfuse::cuda

#endif  // ONNXFUSE_CUDA_NEST_LAYOUT_H_
