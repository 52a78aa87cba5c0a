// The custom operators for the CPU provider alone: FusedSqueezeExcite, FusedMatMul, FusedNhwcConv,
// FusedNhwcPool and FusedNhwcConcat.
#ifndef ONNXFUSE_FUSED_ON_CPU_H_
#define ONNXFUSE_FUSED_ON_CPU_H_

#include <vector>

#include "ort/custom_op.h"

namespace onnxfuse {

// Each under the names that a model may give it.
std::vector<OpFamily> fused_on_cpu();

}  // namespace onnxfuse

#endif  // ONNXFUSE_FUSED_ON_CPU_H_
