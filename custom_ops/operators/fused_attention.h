// The custom operator onnxfuse::FusedAttention, under each of its names.
#ifndef ONNXFUSE_FUSED_ATTENTION_H_
#define ONNXFUSE_FUSED_ATTENTION_H_

#include <vector>

#include "ort/custom_op.h"

namespace onnxfuse {

// The operator for each provider, under the names that a model may give it.
std::vector<OpFamily> fused_attention();

}  // namespace onnxfuse

#endif  // ONNXFUSE_FUSED_ATTENTION_H_
