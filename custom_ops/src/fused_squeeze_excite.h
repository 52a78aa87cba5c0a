// The custom operator onnxfuse::FusedSqueezeExcite, under each of its names.
#ifndef ONNXFUSE_FUSED_SQUEEZE_EXCITE_H_
#define ONNXFUSE_FUSED_SQUEEZE_EXCITE_H_

#include <vector>

#include "ort_abi.h"

namespace onnxfuse {

// The operator, for the CPU provider, once for each name that a model may give it; they live as long as the library.
const std::vector<const OrtCustomOp*>& fused_squeeze_excite();

}  // namespace onnxfuse

#endif  // ONNXFUSE_FUSED_SQUEEZE_EXCITE_H_
