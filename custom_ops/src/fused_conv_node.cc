#include "fused_conv_node.h"

#include <string>
#include <utility>

#include "ort_call.h"
#include "shape_inference.h"
#include "symbolic_shape.h"

namespace onnxfuse {
namespace {

ConvNode read_node(const AttributeSource& source, size_t inputs) {
  ConvNode node;
  std::string error;
  if (!read_conv_node(source, inputs, &node, &error)) throw Error(error);
  return node;
}

ConvNode read_node(const OrtApi* api, const OrtKernelInfo* info) {
  size_t inputs = 0;
  size_t outputs = 0;
  check(api->KernelInfo_GetInputCount(info, &inputs));
  check(api->KernelInfo_GetOutputCount(info, &outputs));
  ConvNode node = read_node(attributes_of(api, info), inputs);
  if (outputs == node.epilogue.outputs.size()) return node;
  throw Error("the node has " + std::to_string(outputs) + " outputs, but its program has " +
              std::to_string(node.epilogue.outputs.size()));
}

}  // namespace

FusedConvNode::FusedConvNode(const OrtApi* api, const OrtKernelInfo* info)
    : Node(kOperator, api, info), node_(read_node(api, info)), epilogue_(api, node_.epilogue) {
  if (node_.has_prologue) prologue_ = std::make_unique<NodeProgram>(api, node_.prologue);
}

void FusedConvNode::infer(const OrtApi& api, OrtShapeInferContext* context) {
  const InferenceNode inferred(api, context);
  const ConvNode node = read_node(inferred.attributes(), inferred.input_count());
  SymbolicShape input;
  const bool widened = inferred.input(0, &input) == info(DType::f32).onnx && node.type == DType::f16;
  const Program epilogue = widened ? widen_half(node.epilogue) : node.epilogue;
  const SymbolicShape result = infer_conv(node.attributes, input);
  for (size_t o = 0; o < epilogue.outputs.size(); ++o) {
    inferred.set_output(o, epilogue.values[epilogue.outputs[o]].type, result);
  }
}

void FusedConvNode::compute(OrtKernelContext* context) {
  const NodeInputs inputs = read_inputs(context);
  compute_on_host(context, kernels_for(inputs), inputs.key, inputs.data,
                  [&](size_t o, const Shape& shape) { return output(context, o, shape); });
}

FusedConvNode::Kernels FusedConvNode::kernels_for(const NodeInputs& inputs) {
  const std::vector<int>& types = inputs.types;
  const auto second = types.begin() + 2 + static_cast<long>(node_.prologue_operands());
  const auto kernel_for = [&types](NodeProgram* program, auto first, auto last) {
    std::vector<int> of_program;
    of_program.reserve(types.size());
    of_program.push_back(types[0]);
    of_program.insert(of_program.end(), first, last);
    return program->kernel_for(of_program);
  };
  Kernels kernels;
  kernels.epilogue = kernel_for(&epilogue_, second, types.end());
  if (prologue_ != nullptr) kernels.prologue = kernel_for(prologue_.get(), types.begin() + 2, second);
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
    if (kernel == nullptr) continue;
    const Program& program = kernel->program();
    for (size_t i = 1; i < program.input_count; ++i) types.push_back(program.values[i].type);
  }
  return types;
}

std::shared_ptr<const ConvCpuPlan> FusedConvNode::find_cpu_plan(const Kernels& kernels, const PlanKey& key) {
  const Program& epilogue = kernels.epilogue->program();
  if (auto plan = cpu_plans_.find(key); plan != nullptr && plan->epilogue.source == &epilogue) return plan;
  ConvShapes shapes;
  std::string error;
  if (!resolve_conv_node(node_, key.shapes, &shapes, &error)) throw Error(error);
  const Program* const prologue = kernels.prologue == nullptr ? nullptr : &kernels.prologue->program();
  auto plan = make_conv_cpu_plan(node_, kernels.type, prologue, epilogue, key, shapes);
  if (plan != nullptr) cpu_plans_.add(plan);
  return plan;
}

void FusedConvNode::compute_on_host(OrtKernelContext* context, const Kernels& kernels, const PlanKey& key,
                                    const std::vector<const void*>& data, const OutputMemory& output_memory) {
  const auto plan = find_cpu_plan(kernels, key);
  const auto second = data.begin() + 2 + static_cast<long>(node_.prologue_operands());
  ConvTensors tensors{data[0], data[1], {}, {}, {}};
  if (kernels.prologue != nullptr) {
    tensors.prologue.reserve(1 + node_.prologue_operands());
    tensors.prologue.push_back(data[0]);
    tensors.prologue.insert(tensors.prologue.end(), data.begin() + 2, second);
  }
  tensors.epilogue.reserve(1 + node_.epilogue_operands());
  tensors.epilogue.push_back(nullptr);
  tensors.epilogue.insert(tensors.epilogue.end(), second, data.end());
  tensors.outputs.reserve(node_.epilogue.outputs.size());
  std::unique_ptr<Scratch> prepared;
  if (plan != nullptr && kernels.prologue != nullptr && plan->prologue == nullptr) {
    prepared = std::make_unique<Scratch>(bytes_of(key.shapes[0], kernels.type));
    kernels.prologue->compute(context, {prologue_inputs(node_, key.shapes)}, tensors.prologue,
                              [&](size_t, const Shape&) { return prepared->data(); });
    tensors.x = prepared->data();
  }
  SessionThreads threads{api(), context};
  if (plan != nullptr && plan->epilogue.plan != nullptr) {
    for (const Shape& shape : plan->epilogue.plan->output_shapes) {
      tensors.outputs.push_back(output_memory(tensors.outputs.size(), shape));
    }
    return run_conv_cpu(*plan, tensors, parallel_for, &threads);
  }
  // The epilogue's own kernel runs on a tensor of the results.
  ConvShapes shapes;
  std::string error;
  if (!resolve_conv_node(node_, key.shapes, &shapes, &error)) throw Error(error);
  const Scratch result(bytes_of(shapes.geometry.output, kernels.type));
  tensors.outputs.push_back(result.data());
  if (plan != nullptr) run_conv_cpu(*plan, tensors, parallel_for, &threads);
  tensors.epilogue[0] = result.data();
  kernels.epilogue->compute(context, {epilogue_inputs(node_, key.shapes, shapes.geometry.output)},
                            std::move(tensors.epilogue), output_memory);
}

}  // namespace onnxfuse
