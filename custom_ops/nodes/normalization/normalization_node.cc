#include "nodes/normalization/normalization_node.h"

#include <string>

#include "ort/shape_inference.h"
#include "ort/symbolic_shape.h"
#include "platform/error.h"

namespace onnxfuse {
namespace {

Normalization read_node(const AttributeSource& source, size_t inputs) {
  Normalization node;
  std::string error;
  if (!read_normalization(source, inputs, &node, &error)) throw Error(error);
  return node;
}

}  // namespace

NormalizationNode::NormalizationNode(const OrtApi* api, const OrtKernelInfo* info) : Node(kOperator, api, info) {
  node_ = read_node(attributes_of(api, info), input_count());
  const size_t outputs = node_.keeps ? 2 : 1;
  if (output_count() == outputs) return;
  throw Error("the node has " + std::to_string(output_count()) + " outputs, not " + std::to_string(outputs));
}

void NormalizationNode::infer(const OrtApi& api, OrtShapeInferContext* context) {
  const InferenceNode inferred(api, context);
  const Normalization node = read_node(inferred.attributes(), inferred.input_count());
  std::vector<SymbolicShape> inputs(node.scale());
  for (size_t i = 0; i < inputs.size(); ++i) inferred.input(i, &inputs[i]);
  const SymbolicShape x = node.has_program ? infer_values(node.program, inputs)[node.program.outputs[0]] : inputs[0];
  for (size_t o = 0; o < (node.keeps ? 2 : 1); ++o) inferred.set_output(o, DType::f32, x);
}

void NormalizationNode::compute(OrtKernelContext* context) {
  NodeInputs inputs;
  read_inputs(context, &inputs);
  check_types(inputs.types);
  const auto plan = plans_.find_or_make(inputs.key, [&](NormalizationPlan* made, std::string* error) {
    return make_normalization_plan(node_, inputs.key, made, error);
  });
  std::vector<void*>& outputs = inputs.outputs;
  for (size_t o = 0; o < outputs.size(); ++o) outputs[o] = output(context, o, plan->output, DType::f32);
  const SessionHost host = session_host(context);
  const size_t bytes = bytes_of(plan->output, DType::f32);
  const OverlappingOutputs overlapping(host, outputs.data(), outputs.size(), [&](size_t) { return bytes; });
  std::vector<RunMemory> copies;
  for (void* const memory : outputs) keep_apart(host, memory, bytes, &inputs, &copies);
  run_normalization(node_, *plan, inputs.data, outputs[0], node_.keeps ? outputs[1] : nullptr, host);
  overlapping.copy();
}

void NormalizationNode::check_types(const std::vector<int>& types) const {
  for (size_t i = 0; i < types.size(); ++i) {
    const bool in_program = node_.has_program && i < node_.program.input_count;
    check_type(types, i, in_program ? node_.program.values[i].type : DType::f32);
  }
}

}  // namespace onnxfuse
