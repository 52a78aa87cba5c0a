// Types and shapes of a fused node's outputs while ORT resolves a graph.
#ifndef ONNXFUSE_SHAPE_INFERENCE_H_
#define ONNXFUSE_SHAPE_INFERENCE_H_

#include <vector>

#include "convolution/conv.h"
#include "ort/ort_abi.h"
#include "ort/symbolic_shape.h"
#include "program/program.h"

namespace onnxfuse {

// Sets the type of every output, and its shape as far as it is certain.  Throws Error if the node's program is not
// valid, or OrtFailure.
void infer_output_shapes(const OrtApi& api, OrtShapeInferContext* context, Reads reads = Reads::Views);

// The shape of every value of a Program on such inputs; one that depends on anything unknown is unknown.
std::vector<SymbolicShape> infer_values(const Program& program, const std::vector<SymbolicShape>& inputs);

// The shape of a convolution's result as far as it is certain; the weights' is known from the attributes.  What does not fit
// is refused when the node runs.
SymbolicShape infer_conv(const ConvAttributes& attributes, const SymbolicShape& input);

}  // namespace onnxfuse

#endif  // ONNXFUSE_SHAPE_INFERENCE_H_
