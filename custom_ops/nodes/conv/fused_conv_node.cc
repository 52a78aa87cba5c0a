#include "nodes/conv/fused_conv_node.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "ort/shape_inference.h"
#include "ort/symbolic_shape.h"
#include "platform/error.h"

namespace onnxfuse {
namespace {

ConvNode read_node(const AttributeSource& source, size_t inputs) {
  ConvNode node;
  std::string error;
  if (!read_conv_node(source, inputs, &node, &error)) throw Error(error);
  return node;
}

template <class Word> void transpose(const void* from, void* to, int64_t rows, int64_t columns) {
  const auto* const values = static_cast<const Word*>(from);
  auto* const result = static_cast<Word*>(to);
  constexpr int64_t kBlock = 16;  // rows whose elements of a column share a cache line
  for (int64_t first = 0; first < rows; first += kBlock) {
    const int64_t end = std::min(first + kBlock, rows);
    for (int64_t column = 0; column < columns; ++column) {
      for (int64_t row = first; row < end; ++row) result[column * rows + row] = values[row * columns + column];
    }
  }
}

ConvNode read_node(const NodeDefinition& definition) {
  ConvNode node = read_node(definition.attributes(), definition.input_count());
  const size_t outputs = definition.output_count();
  if (outputs == node.epilogue.outputs.size()) return node;
  throw Error("the node has " + std::to_string(outputs) + " outputs, but its program has " +
              std::to_string(node.epilogue.outputs.size()));
}

}  // namespace

FusedConvNode::FusedConvNode(const NodeDefinition& definition)
    : Node(kOperator, definition), node_(read_node(definition)), epilogue_(node_.epilogue) {
  if (node_.has_prologue) prologue_ = std::make_unique<NodeProgram>(node_.prologue);
}

void FusedConvNode::infer(const OrtApi& api, OrtShapeInferContext* context) {
  const InferenceNode inferred(api, context);
  const ConvNode node = read_node(inferred.attributes(), inferred.input_count());
  SymbolicShape input;
  const bool widened = inferred.input(0, &input) == info(DType::f32).onnx && node.type == DType::f16;
  const Program epilogue = widened ? widen_half(node.epilogue) : node.epilogue;
  const SymbolicShape result = infer_conv(node.attributes, input);
  for (size_t o = 0; o < epilogue.outputs.size(); ++o) {
    inferred.set_output(o, output_type(epilogue, o), result);
  }
}

void FusedConvNode::compute(NodeContext& context) {
  NodeInputs inputs;
  read_inputs(context, &inputs);
  compute_on_host(context.host(), kernels_for(inputs), inputs.key, inputs.types, inputs.data.data(),
                  inputs.outputs.data(),
                  [&](size_t o, const Shape& shape, DType type) { return output(context, o, shape, type); });
}

FusedConvNode::Kernels FusedConvNode::kernels_for(const NodeInputs& inputs) {
  const std::vector<int>& types = inputs.types;
  const int* const operands = types.data() + 2;
  Kernels kernels;
  kernels.epilogue = epilogue_.kernel_for(types[0], operands + node_.prologue_operands());
  if (prologue_ != nullptr) kernels.prologue = prologue_->kernel_for(types[0], operands);
  if (types[0] != types[1] || kernels.epilogue == nullptr || (prologue_ != nullptr && kernels.prologue == nullptr)) {
    std::string text;
    for (const int type : types) text += (text.empty() ? "" : ", ") + std::to_string(type);
    throw Error("the inputs have the ONNX element types " + text + ", which are not those of the programs");
  }
  kernels.type = kernels.epilogue->program().values[0].type;
  kernels.as_written = kernels.type == node_.type && kernels.epilogue == &epilogue_.as_written() &&
                       (prologue_ == nullptr || kernels.prologue == &prologue_->as_written());
  return kernels;
}

std::vector<DType> FusedConvNode::input_types(const Kernels& kernels) {
  std::vector<DType> types{kernels.type, kernels.type};
  for (const ProgramKernel* kernel : {kernels.prologue, kernels.epilogue}) {
    if (kernel != nullptr) add_operand_types(kernel->program(), &types);
  }
  return types;
}

void FusedConvNode::transpose_weights(size_t element_size, const void* weights, void* transposed) const {
  const ConvAttributes& product = node_.attributes;
  if (element_size == sizeof(float)) {
    transpose<uint32_t>(weights, transposed, product.out_channels, product.in_channels);
  } else {
    transpose<uint16_t>(weights, transposed, product.out_channels, product.in_channels);
  }
}

// None if there is nothing to compute.
PlanInUse<ConvCpuPlan> FusedConvNode::find_cpu_plan(const Kernels& kernels, const PlanKey& key) {
  const Program& epilogue = kernels.epilogue->program();
  const auto matches = [&](const ConvCpuPlan& plan) { return plan.epilogue.source == &epilogue && plan.key == key; };
  if (auto plan = cpu_plans_.find_if(matches)) return plan;
  ConvShapes shapes;
  std::string error;
  if (!resolve_conv_node(node_, key.shapes, &shapes, &error)) throw Error(error);
  const Program* const prologue = kernels.prologue == nullptr ? nullptr : &kernels.prologue->program();
  auto plan = make_conv_cpu_plan(node_, kernels.type, prologue, epilogue, key, shapes);
  return plan == nullptr ? PlanInUse<ConvCpuPlan>() : cpu_plans_.add(std::move(plan));
}

void FusedConvNode::compute_on_host(const Host& host, const Kernels& kernels, const PlanKey& key,
                                    const std::vector<int>& types, const void** data, void** outputs,
                                    const OutputMemory& output_memory) {
  const auto plan = find_cpu_plan(kernels, key);
  const bool writes_results = plan && plan->epilogue.plan != nullptr;
  const size_t results = writes_results ? plan->epilogue.plan->outputs.size() : 0;
  const auto bytes = [&](size_t o) { return plan->epilogue.plan->outputs[o].bytes; };
  for (size_t o = 0; o < results; ++o) {
    outputs[o] = output_memory(o, plan->epilogue.plan->output_shapes[o], output_type(kernels.epilogue->program(), o));
  }
  const OverlappingOutputs overlapping(host, outputs, results, bytes);
  std::vector<RunMemory> copies;
  for (size_t o = 0; o < results; ++o) keep_apart(host, outputs[o], bytes(o), key.shapes, types, data, &copies);
  const bool denormals = plan && plan->numbers.any_denormal(data);
  // With X in place of W each Program's operands follow what it reads, but for the result, which has no place yet.
  const void* const weights = std::exchange(data[1], data[0]);
  const void** const prologue = data + 1;
  const void** const epilogue = prologue + node_.prologue_operands();
  if (!plan) return compute_empty(host, kernels, key, epilogue, outputs, output_memory);
  ConvTensors tensors{data[0], weights, prologue, epilogue, outputs, denormals};
  const bool prepares = kernels.prologue != nullptr && plan->prologue == nullptr;
  const RunMemory prepared(host, prepares ? bytes_of(key.shapes[0], kernels.type) : 0);
  if (prepares) {
    void* made = nullptr;
    kernels.prologue->compute(host, plan->prologue_key, prologue, &made,
                              [&](size_t, const Shape&, DType) { return prepared.data(); });
    tensors.x = prepared.data();
  }
  const bool multiplies = node_.attributes.channels_last;
  const bool transposes = multiplies && !node_.attributes.transposed;
  const RunMemory transposed(host, transposes ? bytes_of(key.shapes[1], kernels.type) : 0);
  if (transposes) {
    transpose_weights(storage_size(kernels.type), weights, transposed.data());
    tensors.weights = transposed.data();
  }
  if (multiplies) std::swap(tensors.x, tensors.weights);  // rows are filters
  if (writes_results) {
    run_conv_cpu(*plan, tensors, host);
    return overlapping.copy();
  }
  // The epilogue's own kernel runs on a tensor of the results.
  const RunMemory result(host, bytes_of(plan->geometry.output, kernels.type));
  void* const values = result.data();
  tensors.outputs = &values;
  run_conv_cpu(*plan, tensors, host);
  epilogue[0] = values;
  kernels.epilogue->compute(host, plan->epilogue_key, epilogue, outputs, output_memory);
}

void FusedConvNode::compute_empty(const Host& host, const Kernels& kernels, const PlanKey& key, const void** epilogue,
                                  void** outputs, const OutputMemory& output_memory) {
  ConvShapes shapes;
  std::string error;
  if (!resolve_conv_node(node_, key.shapes, &shapes, &error)) throw Error(error);
  kernels.epilogue->compute(host, {epilogue_inputs(node_, key.shapes, shapes.geometry.output)}, epilogue, outputs,
                            output_memory);
}

}  // namespace onnxfuse
