#include "nodes/nhwc_concat/nhwc_concat_node.h"

#include <string>

#include "ort/symbolic_shape.h"
#include "platform/error.h"

namespace onnxfuse {

NhwcConcatNode::NhwcConcatNode(const OrtApi* api, const OrtKernelInfo* info) : Node(kOperator, api, info) {
  if (input_count() == 0) throw Error("the node has no inputs");
  if (output_count() != 1) throw Error("the node has " + std::to_string(output_count()) + " outputs, not 1");
}

void NhwcConcatNode::infer(const OrtApi& api, OrtShapeInferContext* context) {
  const InferenceNode inferred(api, context);
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

void NhwcConcatNode::compute(OrtKernelContext* context) {
  NodeInputs inputs;
  read_inputs(context, &inputs);
  for (size_t i = 0; i < inputs.types.size(); ++i) check_type(inputs.types, i, DType::f32);
  const auto plan = plans_.find_or_make(inputs.key, [&](NhwcConcatPlan* made, std::string* error) {
    return make_nhwc_concat_plan(inputs.key, made, error);
  });
  void* const memory = output(context, 0, plan->output, DType::f32);
  const SessionHost host = session_host(context);
  std::vector<RunMemory> copies;
  keep_apart(host, memory, bytes_of(plan->output, DType::f32), &inputs, &copies);
  run_nhwc_concat(*plan, inputs.data, memory, host);
}

}  // namespace onnxfuse
