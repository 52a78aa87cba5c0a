// The custom operator onnxfuse::FusedElementwise, under each of its names.
#ifndef ONNXFUSE_FUSED_ELEMENTWISE_H_
#define ONNXFUSE_FUSED_ELEMENTWISE_H_

#include <vector>

#include "ort_abi.h"

namespace onnxfuse {

// The operator, once for each name that a model may give it and each provider; they live as long as the library.
const std::vector<const OrtCustomOp*>& fused_elementwise();

}  // namespace onnxfuse

#endif  // ONNXFUSE_FUSED_ELEMENTWISE_H_
