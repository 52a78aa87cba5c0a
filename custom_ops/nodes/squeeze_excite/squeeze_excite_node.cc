#include "nodes/squeeze_excite/squeeze_excite_node.h"

#include "ort/symbolic_shape.h"

namespace onnxfuse {

std::vector<DType> SqueezeExciteKind::input_types(const SqueezeExcite& node, size_t) {
  std::vector<DType> types{DType::f32, DType::f32};
  add_operand_types(node.squeeze, &types);
  types.push_back(DType::f32);  // the weights of the second product
  add_operand_types(node.excite, &types);
  return types;
}

std::vector<DType> SqueezeExciteKind::output_types(const SqueezeExcite&) { return {DType::f32}; }

void SqueezeExciteKind::infer(const SqueezeExcite& node, const InferenceNode& inferred) {
  SymbolicShape x;
  SymbolicShape weights;
  inferred.input(0, &x);
  inferred.input(node.excite_weights(), &weights);
  SymbolicShape result;
  result.known = x.known || weights.known;
  result.dims.resize(x.known ? x.dims.size() : weights.dims.size());
  for (size_t d = 0; d < result.dims.size(); ++d) {
    if (d >= 2) result.dims[d].size = 1;
    if (d == 0 && x.known) result.dims[d] = x.dims[d];
    if (d == 1 && weights.known && !weights.dims.empty()) result.dims[d] = weights.dims[0];
  }
  inferred.set_output(0, DType::f32, result);
}

void SqueezeExciteKind::run(const SqueezeExcite& node, const SqueezeExcitePlan& plan, const NodeInputs& inputs,
                            const Host& host) {
  run_squeeze_excite(node, plan, inputs.data, inputs.outputs[0], host);
}

template class PlannedNode<SqueezeExciteKind>;

}  // namespace onnxfuse
