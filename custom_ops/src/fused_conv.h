// The custom operator onnxfuse::FusedConv, under each of its names.
#ifndef ONNXFUSE_FUSED_CONV_H_
#define ONNXFUSE_FUSED_CONV_H_

#include <vector>

#include "ort_abi.h"

namespace onnxfuse {

// The operator, once for each name that a model may give it and each provider; they live as long as the library.
const std::vector<const OrtCustomOp*>& fused_conv();

}  // namespace onnxfuse

#endif  // ONNXFUSE_FUSED_CONV_H_
