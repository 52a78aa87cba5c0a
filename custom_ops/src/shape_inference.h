// Types and shapes of a fused node's outputs while ORT resolves a graph.
#ifndef ONNXFUSE_SHAPE_INFERENCE_H_
#define ONNXFUSE_SHAPE_INFERENCE_H_

#include <string>

#include "ort_abi.h"

namespace onnxfuse {

// Sets the type of every output, and its shape as far as it is certain.  Returns false with an `error` if the node's
// program is not valid; a failure of the ORT API is left in `status`.
bool infer_output_shapes(const OrtApi& api, OrtShapeInferContext* context, OrtStatus** status, std::string* error);

}  // namespace onnxfuse

#endif  // ONNXFUSE_SHAPE_INFERENCE_H_
