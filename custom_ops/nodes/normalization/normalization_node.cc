#include "nodes/normalization/normalization_node.h"

#include "ort/shape_inference.h"
#include "ort/symbolic_shape.h"

namespace onnxfuse {

std::vector<DType> NormalizationKind::input_types(const Normalization& node, size_t count) {
  std::vector<DType> types(count, DType::f32);
  for (size_t i = 0; node.has_program && i < node.program.input_count; ++i) types[i] = node.program.values[i].type;
  return types;
}

std::vector<DType> NormalizationKind::output_types(const Normalization& node) {
  return std::vector<DType>(node.keeps ? 2 : 1, DType::f32);
}

void NormalizationKind::infer(const Normalization& node, const InferenceNode& inferred) {
  std::vector<SymbolicShape> inputs(node.scale());
  for (size_t i = 0; i < inputs.size(); ++i) inferred.input(i, &inputs[i]);
  const SymbolicShape x = node.has_program ? infer_values(node.program, inputs)[node.program.outputs[0]] : inputs[0];
  for (size_t o = 0; o < (node.keeps ? 2 : 1); ++o) inferred.set_output(o, DType::f32, x);
}

void NormalizationKind::run(const Normalization& node, const NormalizationPlan& plan, const NodeInputs& inputs,
                            const Host& host) {
  run_normalization(node, plan, inputs.data, inputs.outputs[0], node.keeps ? inputs.outputs[1] : nullptr, host);
}

template class PlannedNode<NormalizationKind>;

}  // namespace onnxfuse
