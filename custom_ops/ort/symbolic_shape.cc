#include "ort/symbolic_shape.h"

#include <atomic>
#include <memory>

#include "ort/ort_call.h"

namespace onnxfuse {
namespace {

// ORT takes an unknown dimension without a name for the size -1.
std::string fresh_symbol() {
  static std::atomic<uint64_t> count{0};
  return "onnxfuse_" + std::to_string(count++);
}

}  // namespace

size_t InferenceNode::input_count() const {
  size_t count = 0;
  check(api_.ShapeInferContext_GetInputCount(context_, &count));
  return count;
}

int InferenceNode::input(size_t index, SymbolicShape* shape) const {
  OrtTensorTypeAndShapeInfo* info = nullptr;  // stays ORT's
  check(api_.ShapeInferContext_GetInputTypeShape(context_, index, &info));
  int type = 0;
  check(api_.GetTensorElementType(info, &type));
  size_t rank = 0;
  check(api_.GetDimensionsCount(info, &rank));
  std::vector<int64_t> sizes(rank);
  std::vector<const char*> names(rank, nullptr);
  check(api_.GetDimensions(info, sizes.data(), rank));
  check(api_.GetSymbolicDimensions(info, names.data(), rank));
  // ORT shows an unknown rank as rank 0, so a scalar's shape cannot be told from it.
  shape->known = rank > 0;
  for (size_t d = 0; d < rank; ++d) {
    shape->dims.push_back({sizes[d], sizes[d] < 0 && names[d] != nullptr ? names[d] : ""});
  }
  return type;
}

void InferenceNode::set_output(size_t index, DType type, const SymbolicShape& shape) const {
  if (!shape.known) return;
  OrtTensorTypeAndShapeInfo* created = nullptr;
  check(api_.CreateTensorTypeAndShapeInfo(&created));
  const auto release = [this](OrtTensorTypeAndShapeInfo* p) { api_.ReleaseTensorTypeAndShapeInfo(p); };
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(release)> result(created, release);
  std::vector<int64_t> sizes;
  std::vector<std::string> symbols;
  for (const Dim& dim : shape.dims) {
    sizes.push_back(dim.size);
    symbols.push_back(dim.size < 0 && dim.name.empty() ? fresh_symbol() : dim.name);
  }
  std::vector<const char*> names;
  for (const std::string& symbol : symbols) names.push_back(symbol.c_str());
  check(api_.SetTensorElementType(result.get(), info(type).onnx));
  check(api_.SetDimensions(result.get(), sizes.data(), sizes.size()));
  check(api_.SetSymbolicDimensions(result.get(), names.data(), names.size()));
  check(api_.ShapeInferContext_SetOutputTypeShape(context_, index, result.get()));
}

AttributeSource InferenceNode::attributes() const {
  return {
      [this](const char* name, std::string* value) { return text(name, value); },
      [this](const char* name, int64_t* value) { return number(name, value); },
      [this](const char* name, std::vector<int64_t>* value) { return numbers(name, value); },
  };
}

bool InferenceNode::text(const char* name, std::string* text) const {
  const OrtOpAttr* found = attribute(name);
  if (found == nullptr) return false;
  size_t size = 0;
  // The first call only tells the size, and reports the missing room as an error.
  if (OrtStatus* status = api_.ReadOpAttr(found, ORT_OP_ATTR_STRING, nullptr, 0, &size)) api_.ReleaseStatus(status);
  text->resize(size);
  check(api_.ReadOpAttr(found, ORT_OP_ATTR_STRING, text->data(), size, &size));
  while (!text->empty() && text->back() == '\0') text->pop_back();
  return true;
}

bool InferenceNode::number(const char* name, int64_t* number) const {
  const OrtOpAttr* found = attribute(name);
  size_t size = 0;
  if (found == nullptr) return false;
  if (OrtStatus* status = api_.ReadOpAttr(found, ORT_OP_ATTR_INT, number, sizeof(*number), &size)) {
    api_.ReleaseStatus(status);
    return false;
  }
  return true;
}

bool InferenceNode::numbers(const char* name, std::vector<int64_t>* numbers) const {
  const OrtOpAttr* found = attribute(name);
  size_t size = 0;
  if (found == nullptr) return false;
  if (OrtStatus* status = api_.ReadOpAttr(found, ORT_OP_ATTR_INTS, nullptr, 0, &size)) api_.ReleaseStatus(status);
  numbers->resize(size / sizeof(int64_t));
  check(api_.ReadOpAttr(found, ORT_OP_ATTR_INTS, numbers->data(), size, &size));
  return true;
}

// Null if the node has none of this name.
const OrtOpAttr* InferenceNode::attribute(const char* name) const {
  const OrtOpAttr* found = nullptr;
  if (OrtStatus* status = api_.ShapeInferContext_GetAttribute(context_, name, &found)) {
    api_.ReleaseStatus(status);
    return nullptr;
  }
  return found;
}

}  // namespace onnxfuse
