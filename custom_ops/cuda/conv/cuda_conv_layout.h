// The tensors of a fused convolution as its kernels index them, and which kernel takes them.
//
// Everything has three spatial dimensions.  The space of the prologue's operands is X's [N, C, D, H, W], that of the
// epilogue's the result's [N, M, D, H, W].  An operand has a step, in elements, for each dimension of its space, 0 where
// it is broadcast.  The steps that an access letter stands for:
//   l  (C·D·H·W, D·H·W, H·W, W, 1)    the whole space; with the channels last (D·H·W·C, 1, H·W·C, W·C, C)
//   s  (0, 0, 0, 0, 0)                one element
//   c  (0, 1, 0, 0, 0)                one for each channel
//   o  (C, 1, 0, 0, 0)                one for each channel of each image
//   g  any
#ifndef ONNXFUSE_CUDA_CONV_LAYOUT_H_
#define ONNXFUSE_CUDA_CONV_LAYOUT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "convolution/conv_node.h"
#include "cuda/conv/cuda_conv_recipe.h"

namespace onnxfuse::cuda {

using ConvSteps = std::array<int64_t, 5>;  // N, C, D, H, W

struct ConvOperand {
  size_t element_size = 1;  // bytes
  ConvSteps steps{};
};

struct ConvLayout {
  ConvGeometry geometry;
  size_t element_size = 1;            // bytes, of X, W and the result
  int64_t positions = 1;              // the product of the result's spatial sizes
  int64_t count = 0;                  // elements of the result
  std::vector<ConvOperand> operands;  // the prologue's, then the epilogue's
  size_t prologue = 0;                // so many are the prologue's
  std::vector<size_t> output_sizes;   // bytes of an element of each output

  // The space of operand k.
  ConvSteps space(size_t k) const;
};

// The result has elements.
ConvLayout make_conv_layout(const ConvNode& node, const ConvShapes& shapes);

// Whether `kernel` computes the layout.  Sets `misaligned`, for X, W, the operands and the outputs, to the bits of their
// addresses that must be 0.
bool accepts(const ConvKernel& kernel, const ConvLayout& layout, std::vector<uintptr_t>* misaligned);

// The blocks that a kernel takes for one part of its sum.
int64_t conv_blocks(const ConvKernel& kernel, const ConvLayout& layout);

}  // namespace onnxfuse::cuda

#endif  // ONNXFUSE_CUDA_CONV_LAYOUT_H_
