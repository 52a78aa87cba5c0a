// The custom operator onnxfuse::FusedNormalization, under each of its names.
#ifndef ONNXFUSE_FUSED_NORMALIZATION_H_
#define ONNXFUSE_FUSED_NORMALIZATION_H_

#include <vector>

#include "ort_abi.h"

namespace onnxfuse {

// The operator, for the CPU provider, once for each name that a model may give it; they live as long as the library.
const std::vector<const OrtCustomOp*>& fused_normalization();

}  // namespace onnxfuse

#endif  // ONNXFUSE_FUSED_NORMALIZATION_H_
