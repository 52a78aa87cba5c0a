#include "nodes/reduction/reduction_node.h"

#include "ort/shape_inference.h"

namespace onnxfuse {

ReductionNode::ReductionNode(const NodeDefinition& definition)
    : Node(kOperator, definition), program_(read_program(definition.attributes(), "program", Reads::Reductions)) {
  check_counts(program_.program());
}

void ReductionNode::infer(const OrtApi& api, OrtShapeInferContext* context) {
  infer_output_shapes(api, context, Reads::Reductions);
}

void ReductionNode::compute(NodeContext& context) {
  NodeInputs inputs;
  read_inputs(context, &inputs);
  program_.kernel_for(inputs.types)
      .compute(context.host(), inputs.key, inputs.data.data(), inputs.outputs.data(),
               [&](size_t o, const Shape& shape, DType type) { return output(context, o, shape, type); });
}

}  // namespace onnxfuse
