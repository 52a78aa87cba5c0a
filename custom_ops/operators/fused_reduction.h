// The custom operator onnxfuse::FusedReduction, under each of its names.
#ifndef ONNXFUSE_FUSED_REDUCTION_H_
#define ONNXFUSE_FUSED_REDUCTION_H_

#include <vector>

#include "ort/custom_op.h"

namespace onnxfuse {

// The operator for each provider, under the names that a model may give it.
std::vector<OpFamily> fused_reduction();

}  // namespace onnxfuse

#endif  // ONNXFUSE_FUSED_REDUCTION_H_
