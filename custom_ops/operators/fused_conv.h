// The custom operator onnxfuse::FusedConv, under each of its names.
#ifndef ONNXFUSE_FUSED_CONV_H_
#define ONNXFUSE_FUSED_CONV_H_

#include <vector>

#include "ort/custom_op.h"

namespace onnxfuse {

// The operator for each provider, under the names that a model may give it.
std::vector<OpFamily> fused_conv();

}  // namespace onnxfuse

#endif  // ONNXFUSE_FUSED_CONV_H_
