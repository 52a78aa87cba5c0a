#include "nodes/attention/attention_node.h"

#include <array>
#include <string>

#include "ort/symbolic_shape.h"
#include "platform/error.h"

namespace onnxfuse {
namespace {

Attention read_node(const AttributeSource& source, size_t inputs) {
  Attention node;
  std::string error;
  if (!read_attention(source, inputs, &node, &error)) throw Error(error);
  return node;
}

}  // namespace

AttentionNode::AttentionNode(const OrtApi* api, const OrtKernelInfo* info) : Node(kOperator, api, info) {
  node_ = read_node(attributes_of(api, info), input_count());
  if (output_count() != 1) throw Error("the node has " + std::to_string(output_count()) + " outputs, not 1");
}

void AttentionNode::infer(const OrtApi& api, OrtShapeInferContext* context) {
  const InferenceNode inferred(api, context);
  const Attention node = read_node(inferred.attributes(), inferred.input_count());
  std::array<SymbolicShape, 5> shapes;
  for (size_t i = 0; i < inferred.input_count(); ++i) inferred.input(i, &shapes[i]);
  const auto is_valid = [](const SymbolicShape& shape) {
    return shape.known && shape.dims.size() >= 3 && shape.dims.size() <= 5;
  };
  const SymbolicShape& q = shapes[0];
  const SymbolicShape& v = shapes[2];
  SymbolicShape result;
  result.known = true;
  result.dims.resize(node.heads_first[3] ? 4 : 3);
  if (is_valid(q)) {
    result.dims[0] = q.dims[0];
    result.dims[node.heads_first[3] ? 2 : 1] = q.dims[node.heads_first[0] ? q.dims.size() - 2 : 1];
  }
  // What is 1 of Q may be more of another input.
  Dim& batch = result.dims[0];
  for (size_t i = 1; i < inferred.input_count() && batch.size == 1; ++i) {
    const bool of_windows = i == 3 && node.windows > 0;
    const bool has_none = of_windows || (i >= 3 && shapes[i].known && shapes[i].dims.size() < 4);
    const bool has_batch = is_valid(shapes[i]) && (i < 3 || shapes[i].dims.size() == 4);
    if (!has_none) batch = has_batch ? shapes[i].dims[0] : Dim{};
  }
  Dim& length = result.dims[node.heads_first[3] ? 2 : 1];
  for (size_t i = 3; i < inferred.input_count() && length.size == 1; ++i) {
    const SymbolicShape& mask = shapes[i];
    if (!mask.known || mask.dims.size() > 1) length = mask.known ? mask.dims[mask.dims.size() - 2] : Dim{};
  }
  if (node.heads_first[3]) result.dims[1].size = node.heads;
  if (is_valid(v) && v.dims.back().size >= 0) {
    const bool merged = v.dims.size() == 3;
    const int64_t size = merged ? v.dims.back().size / node.input_heads[2] : v.dims.back().size;
    if (size <= INT32_MAX) result.dims.back().size = node.heads_first[3] ? size : size * node.heads;
  }
  inferred.set_output(0, DType::f32, result);
}

void AttentionNode::compute(OrtKernelContext* context) {
  NodeInputs inputs;
  read_inputs(context, &inputs);
  for (size_t i = 0; i < inputs.types.size(); ++i) {
    check_type(inputs.types, i, node_.chosen && i == node_.choice_input() ? DType::boolean : DType::f32);
  }
  const auto plan = plans_.find_or_make(inputs.key, [&](AttentionPlan* made, std::string* error) {
    return make_attention_plan(node_, inputs.key, made, error);
  });
  void* const memory = output(context, 0, plan->output, DType::f32);
  const SessionHost host = session_host(context);
  std::vector<RunMemory> copies;
  keep_apart(host, memory, bytes_of(plan->output, DType::f32), &inputs, &copies);
  run_attention(node_, *plan, inputs.data, memory, host);
}

}  // namespace onnxfuse
