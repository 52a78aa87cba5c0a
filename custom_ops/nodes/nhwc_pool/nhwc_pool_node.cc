#include "nodes/nhwc_pool/nhwc_pool_node.h"

#include <string>

#include "ort/symbolic_shape.h"
#include "platform/error.h"

namespace onnxfuse {
namespace {

NhwcPool read_node(const AttributeSource& source, size_t inputs) {
  NhwcPool node;
  std::string error;
  if (!read_nhwc_pool(source, inputs, &node, &error)) throw Error(error);
  return node;
}

}  // namespace

NhwcPoolNode::NhwcPoolNode(const OrtApi* api, const OrtKernelInfo* info) : Node(kOperator, api, info) {
  node_ = read_node(attributes_of(api, info), input_count());
  if (output_count() != 1) throw Error("the node has " + std::to_string(output_count()) + " outputs, not 1");
}

void NhwcPoolNode::infer(const OrtApi& api, OrtShapeInferContext* context) {
  const InferenceNode inferred(api, context);
  const NhwcPool node = read_node(inferred.attributes(), inferred.input_count());
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

void NhwcPoolNode::compute(OrtKernelContext* context) {
  NodeInputs inputs;
  read_inputs(context, &inputs);
  check_type(inputs.types, 0, DType::f32);
  const auto plan = plans_.find_or_make(inputs.key, [&](NhwcPoolPlan* made, std::string* error) {
    return make_nhwc_pool_plan(node_, inputs.key, made, error);
  });
  void* const memory = output(context, 0, plan->output, DType::f32);
  const SessionHost host = session_host(context);
  std::vector<RunMemory> copies;
  keep_apart(host, memory, bytes_of(plan->output, DType::f32), &inputs, &copies);
  run_nhwc_pool(node_, *plan, inputs.data[0], memory, host);
}

}  // namespace onnxfuse
