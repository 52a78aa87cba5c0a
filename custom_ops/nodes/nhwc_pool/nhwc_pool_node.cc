#include "nodes/nhwc_pool/nhwc_pool_node.h"

#include "ort/symbolic_shape.h"

namespace onnxfuse {

std::vector<DType> NhwcPoolKind::input_types(const NhwcPool&, size_t) { return {DType::f32}; }

std::vector<DType> NhwcPoolKind::output_types(const NhwcPool&) { return {DType::f32}; }

void NhwcPoolKind::infer(const NhwcPool& node, const InferenceNode& inferred) {
  const auto rank = static_cast<size_t>(node.rank());
  SymbolicShape x;
  inferred.input(0, &x);
  SymbolicShape result;
  result.known = true;
  result.dims.resize(rank);
  if (x.known && x.dims.size() == rank) {
    result = x;
    for (size_t d = 0; d + 2 < rank; ++d) {
      if (conv_keeps_size(node.windows, d)) continue;
      Dim& to = result.dims[d + 1];
      const int64_t size = to.size;
      to = Dim{};
      if (size >= 0 && !pool_output_size(node, d, size, &to.size)) to = Dim{};
    }
  }
  inferred.set_output(0, DType::f32, result);
}

void NhwcPoolKind::run(const NhwcPool& node, const NhwcPoolPlan& plan, const NodeInputs& inputs, const Host& host) {
  run_nhwc_pool(node, plan, inputs.data[0], inputs.outputs[0], host);
}

template class PlannedNode<NhwcPoolKind>;

}  // namespace onnxfuse
