#include "ort/session_node.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "figures/programs.h"
#include "ort/ort_call.h"
#include "platform/error.h"

namespace onnxfuse {
namespace {

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

std::string node_name(const OrtApi* api, const OrtKernelInfo* info) {
  return read_string([&](char* out, size_t* size) { return api->KernelInfo_GetNodeName(info, out, size); });
}

size_t SessionNode::input_count() const {
  size_t count = 0;
  check(api_->KernelInfo_GetInputCount(info_, &count));
  return count;
}

size_t SessionNode::output_count() const {
  size_t count = 0;
  check(api_->KernelInfo_GetOutputCount(info_, &count));
  return count;
}

AttributeSource SessionNode::attributes() const {
  const auto read = [api = api_, info = info_](const char* name, auto* value) {
    return read_attribute(api, info, name, value);
  };
  return {read, read, read};
}

const OrtLogger* SessionNode::logger() const {
  const OrtLogger* logger = nullptr;
  if (OrtStatus* status = api_->KernelInfo_GetLogger(info_, &logger)) api_->ReleaseStatus(status);
  return logger;
}

void SessionRun::read_inputs(NodeInputs* inputs) const {
  for (size_t i = 0; i < inputs->types.size(); ++i) {
    inputs->types[i] = read_input(i, &inputs->key.shapes[i], &inputs->data[i]);
  }
}

// Returns the ONNX element type.
int SessionRun::read_input(size_t i, Shape* shape, const void** data) const {
  const OrtValue* value = nullptr;
  check(api_->KernelContext_GetInput(context_, i, &value));
  if (value == nullptr) throw Error("input " + std::to_string(i) + " is missing");
  const int type = read_type_and_shape(value, i, shape);
  void* memory = nullptr;
  check(api_->GetTensorMutableData(const_cast<OrtValue*>(value), &memory));
  *data = memory;
  return type;
}

int SessionRun::read_type_and_shape(const OrtValue* value, size_t i, Shape* shape) const {
  int type = 0;
  size_t rank = 0;
  const auto set_rank = [&] {
    if (rank > kMaxRank) throw Error("input " + std::to_string(i) + " has more than 16 dimensions");
    shape->rank = static_cast<int>(rank);
  };
  if (newer_ != nullptr) {
    const int64_t* dims = nullptr;
    check(newer_->GetTensorElementTypeAndShapeDataReference(value, &type, &dims, &rank));
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

void* SessionRun::output(size_t o, const Shape& shape, int* type) {
  OrtValue* value = nullptr;
  check(api_->KernelContext_GetOutput(context_, o, shape.dims.data(), static_cast<size_t>(shape.rank), &value));
  if (value == nullptr) throw Error("output " + std::to_string(o) + " is missing");
  Shape made;
  *type = read_type_and_shape(value, o, &made);
  void* memory = nullptr;
  check(api_->GetTensorMutableData(value, &memory));
  return memory;
}

SessionWarning::SessionWarning(const SessionNode& node, std::string place)
    : api_(node.api()), logger_(node.logger()), place_(std::move(place)) {}

void SessionWarning::warn_once(const std::string& message) {
  if (warned_.exchange(true)) return;
  const std::string text = place_ + message;
  if (logger_ != nullptr) {
    OrtStatus* status = api_->Logger_LogMessage(logger_, ORT_LOGGING_LEVEL_WARNING, text.c_str(), "session_node.cc",
                                                __LINE__, __func__);
    if (status == nullptr) return;
    api_->ReleaseStatus(status);
  }
  std::fprintf(stderr, "%s\n", text.c_str());
}

}  // namespace onnxfuse
