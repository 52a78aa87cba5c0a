#include "nodes/nhwc_concat/nhwc_concat_node.h"

#include "ort/symbolic_shape.h"

namespace onnxfuse {

bool NhwcConcatKind::read(const AttributeSource&, size_t inputs, NhwcConcat*, std::string* error) {
  if (inputs == 0) *error = "the node has no inputs";
  return inputs > 0;
}

std::vector<DType> NhwcConcatKind::input_types(const NhwcConcat&, size_t count) {
  return std::vector<DType>(count, DType::f32);
}

std::vector<DType> NhwcConcatKind::output_types(const NhwcConcat&) { return {DType::f32}; }

void NhwcConcatKind::infer(const NhwcConcat&, const InferenceNode& inferred) {
  SymbolicShape result;
  Dim last;
  last.size = 0;
  for (size_t i = 0; i < inferred.input_count(); ++i) {
    SymbolicShape x;
    inferred.input(i, &x);
    const bool fits = x.known && !x.dims.empty() && (!result.known || x.dims.size() == result.dims.size());
    const int64_t more = fits ? x.dims.back().size : -1;
    if (last.size >= 0 && (more < 0 || __builtin_add_overflow(last.size, more, &last.size))) last.size = -1;
    if (!fits) continue;
    if (!result.known) result = x;
    for (size_t d = 0; d < x.dims.size(); ++d) {
      if (result.dims[d].size < 0 && x.dims[d].size >= 0) result.dims[d] = x.dims[d];
    }
  }
  if (result.known) result.dims.back() = last;
  inferred.set_output(0, DType::f32, result);
}

bool NhwcConcatKind::plan(const NhwcConcat&, const PlanKey& key, NhwcConcatPlan* plan, std::string* error) {
  return make_nhwc_concat_plan(key, plan, error);
}

void NhwcConcatKind::run(const NhwcConcat&, const NhwcConcatPlan& plan, const NodeInputs& inputs, const Host& host) {
  run_nhwc_concat(plan, inputs.data, inputs.outputs[0], host);
}

template class PlannedNode<NhwcConcatKind>;

}  // namespace onnxfuse
