#include "nodes/nhwc_conv/nhwc_conv_node.h"

#include <algorithm>
#include <string>

#include "ort/shape_inference.h"
#include "ort/symbolic_shape.h"
#include "platform/error.h"

namespace onnxfuse {
namespace {

NhwcConv read_node(const AttributeSource& source, size_t inputs) {
  NhwcConv node;
  std::string error;
  if (!read_nhwc_conv(source, inputs, &node, &error)) throw Error(error);
  return node;
}

}  // namespace

NhwcConvNode::NhwcConvNode(const OrtApi* api, const OrtKernelInfo* info) : Node(kOperator, api, info) {
  node_ = read_node(attributes_of(api, info), input_count());
  const size_t outputs = node_.epilogue.outputs.size();
  if (output_count() == outputs) return;
  throw Error("the node has " + std::to_string(output_count()) + " outputs, but its program has " +
              std::to_string(outputs));
}

void NhwcConvNode::infer(const OrtApi& api, OrtShapeInferContext* context) {
  const InferenceNode inferred(api, context);
  const NhwcConv node = read_node(inferred.attributes(), inferred.input_count());
  SymbolicShape x;
  inferred.input(0, &x);
  const auto known = x.known && x.dims.size() == static_cast<size_t>(node.rank());
  if (known && !node.parts.empty()) x.dims.back() = Dim{node.conv.attributes.in_channels, ""};
  if (known && node.nhwc[0]) std::rotate(x.dims.begin() + 1, x.dims.end() - 1, x.dims.end());
  x.known = known;
  if (node.has_expansion) x = infer_conv(node.expansion, x);
  if (node.has_depthwise) x = infer_conv(node.depthwise, x);
  SymbolicShape result = infer_conv(node.conv.attributes, x);
  if (node.nhwc_output) std::rotate(result.dims.begin() + 1, result.dims.begin() + 2, result.dims.end());
  for (size_t o = 0; o < node.epilogue.outputs.size(); ++o) {
    inferred.set_output(o, output_type(node.epilogue, o), result);
  }
}

void NhwcConvNode::compute(OrtKernelContext* context) {
  NodeInputs inputs;
  read_inputs(context, &inputs);
  check_types(inputs.types);
  const auto plan = plans_.find_or_make(inputs.key, [&](NhwcConvPlan* made, std::string* error) {
    return make_nhwc_conv_plan(node_, inputs.key, made, error);
  });
  const SessionHost host = session_host(context);
  std::vector<void*>& outputs = inputs.outputs;
  const auto bytes = [&](size_t o) { return bytes_of(plan->output, output_type(node_.epilogue, o)); };
  for (size_t o = 0; o < outputs.size(); ++o) {
    outputs[o] = output(context, o, plan->output, output_type(node_.epilogue, o));
  }
  const OverlappingOutputs overlapping(host, outputs.data(), outputs.size(), bytes);
  std::vector<RunMemory> copies;
  for (size_t o = 0; o < outputs.size(); ++o) keep_apart(host, outputs[o], bytes(o), &inputs, &copies);
  run_nhwc_conv(node_, *plan, inputs.data, outputs, host);
  overlapping.copy();
}

void NhwcConvNode::check_types(const std::vector<int>& types) const {
  for (size_t i = 0; i < node_.first_operand(); ++i) check_type(types, i, DType::f32);
  check_operands(types, node_.first_operand(), node_.prologue);
  check_operands(types, node_.first_operand() + node_.conv.prologue_operands(), node_.epilogue);
}

}  // namespace onnxfuse
