#include "nodes/matmul/matmul_node.h"

#include "ort/symbolic_shape.h"

namespace onnxfuse {

std::vector<DType> MatMulKind::input_types(const MatMul& node, size_t) {
  std::vector<DType> types(2, DType::f32);
  add_operand_types(node.conv.epilogue, &types);
  return types;
}

std::vector<DType> MatMulKind::output_types(const MatMul& node) {
  const Program& program = node.conv.epilogue;
  std::vector<DType> types;
  for (size_t o = 0; o < program.outputs.size(); ++o) types.push_back(output_type(program, o));
  return types;
}

void MatMulKind::run(const MatMul& node, const NhwcConvPlan& plan, const NodeInputs& inputs, const Host& host) {
  run_nhwc_conv(node.conv, plan, inputs.data, inputs.outputs, host);
}

void MatMulKind::infer(const MatMul& node, const InferenceNode& inferred) {
  SymbolicShape result;
  inferred.input(0, &result);
  result.known = result.known && result.dims.size() > 1;
  if (result.known) result.dims.back() = Dim{node.columns, ""};
  for (size_t o = 0; o < node.conv.epilogue.outputs.size(); ++o) {
    inferred.set_output(o, output_type(node.conv.epilogue, o), result);
  }
}

template class PlannedNode<MatMulKind>;

}  // namespace onnxfuse
