#include "nodes/attention/attention_node.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "kernels/kernels.h"
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

// The types that there are kernels for.
bool is_known(int onnx, DType* type) {
  for (const DType known : {DType::f32, DType::f16, DType::bf16}) {
    if (onnx != info(known).onnx) continue;
    *type = known;
    return true;
  }
  return false;
}

// What the CPU computes with, of elements of 16 bits.
RunMemory widened(const Host& host, DType type, const void* from, const Shape& shape) {
  int64_t count = 0;
  element_count(shape, &count);
  RunMemory memory(host, bytes_of(shape, DType::f32));
  if (count > 0) kernels().loads[static_cast<int>(type)](memory.data(), &from, static_cast<size_t>(count));
  return memory;
}

// The CPU's kernels know the least float for what leaves nothing of a row, and take the least number of a type for it.
void widen_least(DType type, int64_t count, float* mask) {
  const float least = type == DType::f16 ? -65504.0f : -0x1.fep127f;
  std::replace_if(mask, mask + count, [least](float x) { return x == least; }, std::numeric_limits<float>::lowest());
}

void run(const Host& host, const Attention& node, const AttentionPlan& plan, DType type,
         const std::vector<const void*>& inputs, void* output) {
  if (type == DType::f32 || plan.count == 0) return run_attention(node, plan, inputs, output, host);
  std::vector<const void*> data = inputs;
  std::vector<RunMemory> memory;
  const size_t tensors = node.masked ? 4 : 3;
  for (size_t i = 0; i < tensors; ++i) {
    memory.push_back(widened(host, type, data[i], plan.key.shapes[i]));
    data[i] = memory.back().data();
  }
  if (node.masked && node.masked_as_zero) {
    int64_t count = 0;
    element_count(plan.key.shapes[3], &count);
    widen_least(type, count, static_cast<float*>(memory.back().data()));
  }
  const RunMemory wide(host, bytes_of(plan.output, DType::f32));
  run_attention(node, plan, data, wide.data(), host);
  const void* const results = wide.data();
  kernels().stores[static_cast<int>(type)](output, &results, static_cast<size_t>(plan.count));
}

}  // namespace

AttentionNode::AttentionNode(const NodeDefinition& definition) : Node(kOperator, definition) {
  node_ = read_node(definition.attributes(), input_count());
  if (output_count() != 1) throw Error("the node has " + std::to_string(output_count()) + " outputs, not 1");
}

void AttentionNode::infer(const OrtApi& api, OrtShapeInferContext* context) {
  const InferenceNode inferred(api, context);
  const Attention node = read_node(inferred.attributes(), inferred.input_count());
  std::array<SymbolicShape, 5> shapes;
  DType type = DType::f32;
  for (size_t i = inferred.input_count(); i > 0; --i) is_known(inferred.input(i - 1, &shapes[i - 1]), &type);
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
  inferred.set_output(0, type, result);
}

void AttentionNode::compute(NodeContext& context) {
  NodeInputs inputs;
  read_inputs(context, &inputs);
  const DType type = type_of(inputs.types);
  const auto plan = find_plan(inputs.key);
  void* const memory = output(context, 0, plan->output, type);
  const Host& host = context.host();
  std::vector<RunMemory> copies;
  keep_apart(host, memory, bytes_of(plan->output, type), &inputs, &copies);
  run(host, node_, *plan, type, inputs.data, memory);
}

DType AttentionNode::type_of(const std::vector<int>& types) const {
  DType type{};
  if (!is_known(types[0], &type)) {
    throw Error("input 0 has the ONNX element type " + std::to_string(types[0]) +
                ", not that of float, float16 or bfloat16");
  }
  for (size_t i = 0; i < types.size(); ++i) check_type(types, i, is_choice(i) ? DType::boolean : type);
  return type;
}

void AttentionNode::compute_on_host(const Host& host, const PlanKey& key, DType type,
                                    const std::vector<const void*>& data,
                                    const std::function<void*(const Shape& shape)>& output_memory) {
  const auto plan = find_plan(key);
  run(host, node_, *plan, type, data, output_memory(plan->output));
}

PlanInUse<AttentionPlan> AttentionNode::find_plan(const PlanKey& key) {
  return plans_.find_or_make(key, [&](AttentionPlan* made, std::string* error) {
    return make_attention_plan(node_, key, made, error);
  });
}

}  // namespace onnxfuse
