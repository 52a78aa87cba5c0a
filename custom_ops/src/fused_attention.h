// The custom operator onnxfuse::FusedAttention, under each of its names.
#ifndef ONNXFUSE_FUSED_ATTENTION_H_
#define ONNXFUSE_FUSED_ATTENTION_H_

#include <vector>

#include "ort_abi.h"

namespace onnxfuse {

// The operator, for the CPU provider, once for each name that a model may give it; they live as long as the library.
const std::vector<const OrtCustomOp*>& fused_attention();

}  // namespace onnxfuse

#endif  // ONNXFUSE_FUSED_ATTENTION_H_
