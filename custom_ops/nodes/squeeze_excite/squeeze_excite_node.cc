#include "nodes/squeeze_excite/squeeze_excite_node.h"

#include <string>

#include "ort/symbolic_shape.h"
#include "platform/error.h"

namespace onnxfuse {
namespace {

SqueezeExcite read_node(const AttributeSource& source, size_t inputs) {
  SqueezeExcite node;
  std::string error;
  if (!read_squeeze_excite(source, inputs, &node, &error)) throw Error(error);
  return node;
}

}  // namespace

SqueezeExciteNode::SqueezeExciteNode(const OrtApi* api, const OrtKernelInfo* info) : Node(kOperator, api, info) {
  node_ = read_node(attributes_of(api, info), input_count());
  if (output_count() != 1) throw Error("the node has " + std::to_string(output_count()) + " outputs, not 1");
}

void SqueezeExciteNode::infer(const OrtApi& api, OrtShapeInferContext* context) {
  const InferenceNode inferred(api, context);
  const SqueezeExcite node = read_node(inferred.attributes(), inferred.input_count());
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

void SqueezeExciteNode::compute(OrtKernelContext* context) {
  NodeInputs inputs;
  read_inputs(context, &inputs);
  check_types(inputs.types);
  const auto plan = plans_.find_or_make(inputs.key, [&](SqueezeExcitePlan* made, std::string* error) {
    return make_squeeze_excite_plan(node_, inputs.key, made, error);
  });
  void* const memory = output(context, 0, plan->output, DType::f32);
  const SessionHost host = session_host(context);
  std::vector<RunMemory> copies;
  keep_apart(host, memory, bytes_of(plan->output, DType::f32), &inputs, &copies);
  run_squeeze_excite(node_, *plan, inputs.data, memory, host);
}

void SqueezeExciteNode::check_types(const std::vector<int>& types) const {
  check_type(types, 0, DType::f32);
  check_type(types, 1, DType::f32);
  check_type(types, node_.excite_weights(), DType::f32);
  check_operands(types, node_.squeeze_operands(), node_.squeeze);
  check_operands(types, node_.excite_operands(), node_.excite);
}

}  // namespace onnxfuse
