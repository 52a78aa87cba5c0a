#include "nodes/reduction/reduction_node.h"

#include "ort/shape_inference.h"

namespace onnxfuse {

ReductionNode::ReductionNode(const OrtApi* api, const OrtKernelInfo* info)
    : Node(kOperator, api, info), program_(read_program(api, info, "program", Reads::Reductions)) {
  check_counts(program_.program());
}

void ReductionNode::infer(const OrtApi& api, OrtShapeInferContext* context) {
  infer_output_shapes(api, context, Reads::Reductions);
}

void ReductionNode::compute(OrtKernelContext* context) {
  NodeInputs inputs;
  read_inputs(context, &inputs);
  program_.kernel_for(inputs.types)
      .compute(session_host(context), inputs.key, inputs.data.data(), inputs.outputs.data(),
               [&](size_t o, const Shape& shape, DType type) { return output(context, o, shape, type); });
}

}  // namespace onnxfuse
