#include "ort/node.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>

#include "ort/custom_op.h"
#include "ort/ort_call.h"
#include "platform/error.h"

namespace onnxfuse {
namespace {

bool read_attribute(const OrtApi* api, const OrtKernelInfo* info, const char* name, int64_t* number) {
  if (OrtStatus* status = api->KernelInfoGetAttribute_int64(info, name, number)) {
    api->ReleaseStatus(status);
    return false;
  }
  return true;
}

bool read_attribute(const OrtApi* api, const OrtKernelInfo* info, const char* name, std::vector<int64_t>* numbers) {
  size_t count = 0;
  if (OrtStatus* status = api->KernelInfoGetAttributeArray_int64(info, name, nullptr, &count)) {
    api->ReleaseStatus(status);
    return false;
  }
  numbers->resize(count);
  if (count > 0) check(api->KernelInfoGetAttributeArray_int64(info, name, numbers->data(), &count));
  return true;
}

}  // namespace

std::string place(const char* op, const std::string& name) {
  return "onnxfuse::" + std::string(op) + " node '" + name + "': ";
}

std::string node_name(const OrtApi* api, const OrtKernelInfo* info) {
  return read_string([&](char* out, size_t* size) { return api->KernelInfo_GetNodeName(info, out, size); });
}

bool read_attribute(const OrtApi* api, const OrtKernelInfo* info, const char* name, std::string* bytes) {
  size_t size = 0;
  if (OrtStatus* status = api->KernelInfoGetAttribute_string(info, name, nullptr, &size)) {
    api->ReleaseStatus(status);
    return false;
  }
  *bytes = read_string(
      [&](char* out, size_t* capacity) { return api->KernelInfoGetAttribute_string(info, name, out, capacity); });
  return true;
}

AttributeSource attributes_of(const OrtApi* api, const OrtKernelInfo* info) {
  const auto read = [=](const char* name, auto* value) { return read_attribute(api, info, name, value); };
  return {read, read, read};
}

Program read_program(const OrtApi* api, const OrtKernelInfo* info, const char* attribute, Reads reads) {
  std::string text;
  if (!read_attribute(api, info, attribute, &text)) throw Error("it has no text as attribute " + std::string(attribute));
  Program program;
  std::string error;
  if (parse_program(text, &program, &error, reads)) return program;
  throw Error("the " + std::string(attribute) + " attribute is not valid: " + error);
}

size_t bytes_of(const Shape& shape, DType type) {
  int64_t count = 0;
  if (!element_count(shape, &count)) throw Error("shape " + to_string(shape) + " has too many elements");
  return static_cast<size_t>(count) * storage_size(type);
}

Node::Node(const char* op, const OrtApi* api, const OrtKernelInfo* info, Provider provider)
    : api_(api), newer_api_(newer_api(api)), place_(onnxfuse::place(op, node_name(api, info))) {
  check(api->KernelInfo_GetInputCount(info, &input_count_));
  check(api->KernelInfo_GetOutputCount(info, &output_count_));
  if (OrtStatus* status = api->KernelInfo_GetLogger(info, &logger_)) api->ReleaseStatus(status);
  if (provider == Provider::Cpu) allocator_.emplace(api, info);
}

void NodeInputs::swap_with_last() {
  struct Last {
    std::vector<Shape> shapes;
    std::vector<int> types;
    std::vector<const void*> data;
    std::vector<void*> outputs;
  };
  static thread_local Last last;
  key.shapes.swap(last.shapes);
  types.swap(last.types);
  data.swap(last.data);
  outputs.swap(last.outputs);
}

void Node::read_inputs(const OrtKernelContext* context, NodeInputs* inputs) const {
  inputs->key.shapes.resize(input_count_);
  inputs->types.resize(input_count_);
  inputs->data.resize(input_count_);
  inputs->outputs.resize(output_count_);
  for (size_t i = 0; i < input_count_; ++i) {
    inputs->types[i] = read_input(context, i, &inputs->key.shapes[i], &inputs->data[i]);
  }
}

// Returns the ONNX element type.
int Node::read_input(const OrtKernelContext* context, size_t i, Shape* shape, const void** data) const {
  const OrtValue* value = nullptr;
  check(api_->KernelContext_GetInput(context, i, &value));
  if (value == nullptr) throw Error("input " + std::to_string(i) + " is missing");
  const int type = read_type_and_shape(value, i, shape);
  void* memory = nullptr;
  check(api_->GetTensorMutableData(const_cast<OrtValue*>(value), &memory));
  *data = memory;
  return type;
}

int Node::read_type_and_shape(const OrtValue* value, size_t i, Shape* shape) const {
  int type = 0;
  size_t rank = 0;
  const auto set_rank = [&] {
    if (rank > kMaxRank) throw Error("input " + std::to_string(i) + " has more than 16 dimensions");
    shape->rank = static_cast<int>(rank);
  };
  if (newer_api_ != nullptr) {
    const int64_t* dims = nullptr;
    check(newer_api_->GetTensorElementTypeAndShapeDataReference(value, &type, &dims, &rank));
    set_rank();
    std::copy_n(dims, rank, shape->dims.begin());
    return type;
  }
  OrtTensorTypeAndShapeInfo* info = nullptr;
  check(api_->GetTensorTypeAndShape(value, &info));
  const auto release = [this](OrtTensorTypeAndShapeInfo* p) { api_->ReleaseTensorTypeAndShapeInfo(p); };
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(release)> owner(info, release);
  check(api_->GetTensorElementType(info, &type));
  check(api_->GetDimensionsCount(info, &rank));
  set_rank();
  check(api_->GetDimensions(info, shape->dims.data(), rank));
  return type;
}

void Node::check_counts(const Program& program) const {
  if (input_count_ == program.input_count && output_count_ == program.outputs.size()) return;
  throw Error("the node has " + std::to_string(input_count_) + " inputs and " + std::to_string(output_count_) +
              " outputs, but its program has " + std::to_string(program.input_count) + " and " +
              std::to_string(program.outputs.size()));
}

void Node::check_type(const std::vector<int>& types, size_t i, DType type) {
  const int wanted = info(type).onnx;
  if (types[i] == wanted) return;
  throw Error("input " + std::to_string(i) + " has the ONNX element type " + std::to_string(types[i]) + ", not " +
              std::to_string(wanted));
}

void Node::check_operands(const std::vector<int>& types, size_t first, const Program& program) {
  for (size_t i = 1; i < program.input_count; ++i) check_type(types, first + i - 1, program.values[i].type);
}

void* Node::output(OrtKernelContext* context, size_t o, const Shape& shape, DType type) const {
  OrtValue* value = nullptr;
  check(api_->KernelContext_GetOutput(context, o, shape.dims.data(), static_cast<size_t>(shape.rank), &value));
  if (value == nullptr) throw Error("output " + std::to_string(o) + " is missing");
  Shape made;
  if (const int declared = read_type_and_shape(value, o, &made); declared != info(type).onnx) {
    throw Error("output " + std::to_string(o) + " has the ONNX element type " + std::to_string(declared) +
                ", but the node computes " + info(type).name);
  }
  void* memory = nullptr;
  check(api_->GetTensorMutableData(value, &memory));
  return memory;
}

void Node::keep_apart(const Host& host, const void* output, size_t bytes, const std::vector<Shape>& shapes,
                      const std::vector<int>& types, const void** data, std::vector<RunMemory>* copies) {
  for (size_t i = 0; i < shapes.size(); ++i) {
    const auto* const type = std::find_if(kDTypes, kDTypes + kDTypeCount,
                                          [&](const DTypeInfo& known) { return known.onnx == types[i]; });
    int64_t count = 0;
    if (type == kDTypes + kDTypeCount || !element_count(shapes[i], &count)) continue;
    const size_t size = static_cast<size_t>(count) * type->size;
    if (!overlap(output, bytes, data[i], size)) continue;
    copies->emplace_back(host, size);
    std::memcpy(copies->back().data(), data[i], size);
    data[i] = copies->back().data();
  }
}

SessionHost Node::session_host(const OrtKernelContext* context) const {
  return {api_, context, allocator_ ? allocator_->get() : nullptr};
}

void Node::warn_once(const std::string& message) {
  if (warned_.exchange(true)) return;
  const std::string text = place_ + message;
  if (logger_ != nullptr) {
    OrtStatus* status = api_->Logger_LogMessage(logger_, ORT_LOGGING_LEVEL_WARNING, text.c_str(), "node.cc", __LINE__,
                                                __func__);
    if (status == nullptr) return;
    api_->ReleaseStatus(status);
  }
  std::fprintf(stderr, "%s\n", text.c_str());
}

}  // namespace onnxfuse
