// The parameters of a convolution kernel's launch, as one block of memory laid out as the members of a C struct; none
// needs padding before it:
//
//   a device pointer each: X, W, the prologue's operands, the epilogue's operands, the outputs, the workspace
//   struct ConvShape { word N, in[3], out[3], pad[3], splits; Divider out_w, out_h, positions; }
//   for each operand with letter g: struct ConvSteps { word steps[5]; }
//
// A word has the bits of the kernel's indices, a Divider is that of cuda_divider.h.
#ifndef ONNXFUSE_CUDA_CONV_PARAMETERS_H_
#define ONNXFUSE_CUDA_CONV_PARAMETERS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/conv/cuda_conv_layout.h"
#include "cuda/conv/cuda_conv_recipe.h"
#include "cuda/driver/cuda_kernels.h"

namespace onnxfuse::cuda {


// Where the parameters of a kernel lie, which does not depend on shapes.
struct ConvParameters {
  size_t bytes = 0;
  size_t workspace = 0;         // the offset of its pointer
  size_t splits = 0;            // the offset of the number
  std::vector<Parameter> each;  // in order
};

ConvParameters conv_parameters(const ConvKernel& kernel, const ConvOperandCounts& counts);

// The parameters for a layout: the pointers are left 0, and there is one split.
std::vector<unsigned char> pack_conv_parameters(const ConvKernel& kernel, const ConvLayout& layout);

// The recipe's functions, by number.
std::vector<KernelSignature> signatures(const ConvRecipe& recipe, const ConvOperandCounts& counts);

}  // namespace onnxfuse::cuda

#endif  // ONNXFUSE_CUDA_CONV_PARAMETERS_H_
