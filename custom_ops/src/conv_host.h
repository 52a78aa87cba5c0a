// Convolutions on the CPU in plain loops, for nodes whose kernels cannot be used: right, but not fast.
#ifndef ONNXFUSE_CONV_HOST_H_
#define ONNXFUSE_CONV_HOST_H_

#include "conv.h"
#include "dtype.h"
#include "executor.h"

namespace onnxfuse {

// `output` = the convolution of `input` with `weights`, without a bias.  All are tensors of `type`, one of f32, f16 and
// bf16, in memory of the host.  Sums are in double, and rounded to float, then to the type.
void convolve(const ConvGeometry& geometry, DType type, const void* input, const void* weights, void* output,
              ParallelFor parallel_for, void* context);

}  // namespace onnxfuse

#endif  // ONNXFUSE_CONV_HOST_H_
