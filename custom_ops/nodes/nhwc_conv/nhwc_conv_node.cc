#include "nodes/nhwc_conv/nhwc_conv_node.h"

#include <algorithm>
#include "ort/shape_inference.h"
#include "ort/symbolic_shape.h"

namespace onnxfuse {

std::vector<DType> NhwcConvKind::input_types(const NhwcConv& node, size_t) {
  std::vector<DType> types(node.first_operand(), DType::f32);
  add_operand_types(node.prologue, &types);
  add_operand_types(node.epilogue, &types);
  return types;
}

std::vector<DType> NhwcConvKind::output_types(const NhwcConv& node) {
  std::vector<DType> types;
  for (size_t o = 0; o < node.epilogue.outputs.size(); ++o) types.push_back(output_type(node.epilogue, o));
  return types;
}

void NhwcConvKind::infer(const NhwcConv& node, const InferenceNode& inferred) {
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

void NhwcConvKind::run(const NhwcConv& node, const NhwcConvPlan& plan, const NodeInputs& inputs, const Host& host) {
  run_nhwc_conv(node, plan, inputs.data, inputs.outputs, host);
}

template class PlannedNode<NhwcConvKind>;

}  // namespace onnxfuse
