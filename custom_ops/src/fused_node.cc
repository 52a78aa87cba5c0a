#include "fused_node.h"

#include <memory>
#include <utility>

#include "ort_call.h"

namespace onnxfuse {
namespace {

Program read_program(const OrtApi* api, const OrtKernelInfo* info) {
  const std::string text = read_string(
      [&](char* out, size_t* size) { return api->KernelInfoGetAttribute_string(info, "program", out, size); });
  Program program;
  std::string error;
  if (!parse_program(text, &program, &error)) throw Error("the program attribute is not valid: " + error);
  size_t inputs = 0;
  size_t outputs = 0;
  check(api->KernelInfo_GetInputCount(info, &inputs));
  check(api->KernelInfo_GetOutputCount(info, &outputs));
  if (inputs != program.input_count || outputs != program.outputs.size()) {
    throw Error("the node has " + std::to_string(inputs) + " inputs and " + std::to_string(outputs) +
                " outputs, but its program has " + std::to_string(program.input_count) + " and " +
                std::to_string(program.outputs.size()));
  }
  return program;
}

}  // namespace

std::string place(const std::string& name) { return "onnxfuse::FusedElementwise node '" + name + "': "; }

FusedNode::FusedNode(const OrtApi* api, const OrtKernelInfo* info) : FusedNode(api, info, read_program(api, info)) {}

FusedNode::FusedNode(const OrtApi* api, const OrtKernelInfo* info, Program program)
    : api_(api),
      name_(node_name(api, info)),
      widened_(api, widen_half(program)),
      as_written_(api, std::move(program)) {}

std::string FusedNode::node_name(const OrtApi* api, const OrtKernelInfo* info) {
  return read_string([&](char* out, size_t* size) { return api->KernelInfo_GetNodeName(info, out, size); });
}

NodeInputs FusedNode::read_inputs(const OrtKernelContext* context) const {
  const size_t count = as_written_.program().input_count;
  NodeInputs inputs;
  inputs.key.shapes.resize(count);
  inputs.types.resize(count);
  inputs.data.resize(count);
  for (size_t i = 0; i < count; ++i) inputs.types[i] = read_input(context, i, &inputs.key.shapes[i], &inputs.data[i]);
  return inputs;
}

// Returns the ONNX element type.
int FusedNode::read_input(const OrtKernelContext* context, size_t i, Shape* shape, const void** data) const {
  const OrtValue* value = nullptr;
  check(api_->KernelContext_GetInput(context, i, &value));
  if (value == nullptr) throw Error("input " + std::to_string(i) + " is missing");
  OrtTensorTypeAndShapeInfo* info = nullptr;
  check(api_->GetTensorTypeAndShape(value, &info));
  const auto release = [this](OrtTensorTypeAndShapeInfo* p) { api_->ReleaseTensorTypeAndShapeInfo(p); };
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(release)> owner(info, release);
  int type = 0;
  size_t rank = 0;
  check(api_->GetTensorElementType(info, &type));
  check(api_->GetDimensionsCount(info, &rank));
  if (rank > kMaxRank) throw Error("input " + std::to_string(i) + " has more than 16 dimensions");
  shape->rank = static_cast<int>(rank);
  check(api_->GetDimensions(info, shape->dims.data(), rank));
  void* memory = nullptr;
  check(api_->GetTensorMutableData(const_cast<OrtValue*>(value), &memory));
  *data = memory;
  return type;
}

void* FusedNode::output(OrtKernelContext* context, size_t o, const Shape& shape) const {
  OrtValue* value = nullptr;
  check(api_->KernelContext_GetOutput(context, o, shape.dims.data(), static_cast<size_t>(shape.rank), &value));
  if (value == nullptr) throw Error("output " + std::to_string(o) + " is missing");
  void* memory = nullptr;
  check(api_->GetTensorMutableData(value, &memory));
  return memory;
}

ProgramKernel& FusedNode::kernel_for(const std::vector<int>& types) {
  if (as_written_.takes(types)) return as_written_;
  if (widened_.takes(types)) return widened_;
  size_t wrong = 0;
  while (types[wrong] == info(as_written_.program().values[wrong].type).onnx) ++wrong;
  throw Error("input " + std::to_string(wrong) + " has ONNX element type " + std::to_string(types[wrong]) +
              ", but the program expects " + info(as_written_.program().values[wrong].type).name);
}

}  // namespace onnxfuse
