// The custom operator onnxfuse::FusedConv, under each of its names.
#ifndef ONNXFUSE_FUSED_CONV_H_
#define ONNXFUSE_FUSED_CONV_H_

#include <vector>

#include "ort_abi.h"

namespace onnxfuse {

// The operator, once for each name that a model may give it and each provider; they live as long as the library.
const std::vector<const OrtCustomOp*>& fused_conv();

// Whether sessions with these options may run the operator on a GPU.  Where they cannot it is better not known at all,
// for then ORT takes the node's function body, with its own convolutions: on a machine without a CUDA driver, in an ORT
// without a CUDA provider, and where the session's configuration has an entry kNoCudaKey = "1".
constexpr char kNoCudaKey[] = "onnxfuse.no_cuda";
bool fused_conv_is_of_use(const OrtApi* api, const OrtSessionOptions* options);

}  // namespace onnxfuse

#endif  // ONNXFUSE_FUSED_CONV_H_
