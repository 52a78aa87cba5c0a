// The custom operators for the CPU provider alone: FusedSqueezeExcite, FusedAttention,
// FusedNormalization, FusedNhwcConv and FusedNhwcPool.
#ifndef ONNXFUSE_FUSED_ON_CPU_H_
#define ONNXFUSE_FUSED_ON_CPU_H_

#include <vector>

#include "ort_abi.h"

namespace onnxfuse {

// Each once for each name that a model may give it; they live as long as the library.
const std::vector<const OrtCustomOp*>& fused_on_cpu();

}  // namespace onnxfuse

#endif  // ONNXFUSE_FUSED_ON_CPU_H_
