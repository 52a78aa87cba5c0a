// The custom operator onnxfuse::FusedElementwise.
#ifndef ONNXFUSE_FUSED_ELEMENTWISE_H_
#define ONNXFUSE_FUSED_ELEMENTWISE_H_

#include "ort_abi.h"

namespace onnxfuse {

// The operator for the CPU provider; it lives as long as the library.
const OrtCustomOp* fused_elementwise();

// The API table that the operator's callbacks without one of their own use; set before the operator is registered.
void set_api(const OrtApi* api);

}  // namespace onnxfuse

#endif  // ONNXFUSE_FUSED_ELEMENTWISE_H_
