#include "shape_inference.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "program.h"

namespace onnxfuse {
namespace {

// A dimension while shapes are not known yet: a size, a name, or neither.
struct Dim {
  int64_t size = -1;
  std::string name;
};

struct SymbolicShape {
  bool known = false;  // the rank
  std::vector<Dim> dims;
};

Dim broadcast_dim(const Dim& a, const Dim& b) {
  if (a.size == 1) return b;
  if (b.size == 1) return a;
  if (a.size >= 0) return a;  // the other is this size too, or 1
  if (b.size >= 0) return b;
  return a.name == b.name ? a : Dim{};
}

SymbolicShape broadcast_shapes(const SymbolicShape& a, const SymbolicShape& b) {
  if (!a.known || !b.known) return {};
  const SymbolicShape& longer = a.dims.size() >= b.dims.size() ? a : b;
  const SymbolicShape& shorter = a.dims.size() >= b.dims.size() ? b : a;
  SymbolicShape result = longer;
  const size_t skip = longer.dims.size() - shorter.dims.size();
  for (size_t i = 0; i < shorter.dims.size(); ++i) {
    result.dims[skip + i] = broadcast_dim(longer.dims[skip + i], shorter.dims[i]);
  }
  return result;
}

OrtStatus* read_attribute(const OrtApi& api, OrtShapeInferContext* context, std::string* text) {
  const OrtOpAttr* attribute = nullptr;
  if (OrtStatus* status = api.ShapeInferContext_GetAttribute(context, "program", &attribute)) return status;
  size_t size = 0;
  // The first call only tells the size, and reports the missing room as an error.
  if (OrtStatus* status = api.ReadOpAttr(attribute, ORT_OP_ATTR_STRING, nullptr, 0, &size)) api.ReleaseStatus(status);
  text->resize(size);
  if (OrtStatus* status = api.ReadOpAttr(attribute, ORT_OP_ATTR_STRING, text->data(), size, &size)) return status;
  while (!text->empty() && text->back() == '\0') text->pop_back();
  return nullptr;
}

OrtStatus* read_input(const OrtApi& api, OrtShapeInferContext* context, size_t index, SymbolicShape* shape, int* type) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  if (OrtStatus* status = api.ShapeInferContext_GetInputTypeShape(context, index, &info)) return status;
  if (OrtStatus* status = api.GetTensorElementType(info, type)) return status;
  size_t rank = 0;
  if (OrtStatus* status = api.GetDimensionsCount(info, &rank)) return status;
  std::vector<int64_t> sizes(rank);
  std::vector<const char*> names(rank, nullptr);
  if (OrtStatus* status = api.GetDimensions(info, sizes.data(), rank)) return status;
  if (OrtStatus* status = api.GetSymbolicDimensions(info, names.data(), rank)) return status;
  // ORT shows an unknown rank as rank 0, so a scalar's shape cannot be told from it.
  shape->known = rank > 0;
  for (size_t d = 0; d < rank; ++d) {
    shape->dims.push_back({sizes[d], sizes[d] < 0 && names[d] != nullptr ? names[d] : ""});
  }
  return nullptr;
}

// ORT takes an unknown dimension without a name for the size -1.
std::string fresh_symbol() {
  static std::atomic<uint64_t> count{0};
  return "onnxfuse_" + std::to_string(count++);
}

OrtStatus* set_output(const OrtApi& api, OrtShapeInferContext* context, size_t index, DType type,
                      const SymbolicShape& shape) {
  // ORT would take an unknown shape for a scalar: the type is then left to the model's value_info.
  if (!shape.known) return nullptr;
  OrtTensorTypeAndShapeInfo* info = nullptr;
  if (OrtStatus* status = api.CreateTensorTypeAndShapeInfo(&info)) return status;
  std::vector<int64_t> sizes;
  std::vector<std::string> symbols;
  for (const Dim& dim : shape.dims) {
    sizes.push_back(dim.size);
    symbols.push_back(dim.size < 0 && dim.name.empty() ? fresh_symbol() : dim.name);
  }
  std::vector<const char*> names;
  for (const std::string& symbol : symbols) names.push_back(symbol.c_str());
  OrtStatus* status = api.SetTensorElementType(info, onnxfuse::info(type).onnx);
  if (status == nullptr) status = api.SetDimensions(info, sizes.data(), sizes.size());
  if (status == nullptr) status = api.SetSymbolicDimensions(info, names.data(), names.size());
  if (status == nullptr) status = api.ShapeInferContext_SetOutputTypeShape(context, index, info);
  api.ReleaseTensorTypeAndShapeInfo(info);
  return status;
}

// The shape of every value; one that depends on anything unknown is unknown.
std::vector<SymbolicShape> infer_values(const Program& program, const std::vector<SymbolicShape>& inputs) {
  bool region_known = true;
  size_t region_rank = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (program.values[i].along_axis) continue;
    region_known = region_known && inputs[i].known;
    region_rank = std::max(region_rank, inputs[i].dims.size());
  }
  std::vector<SymbolicShape> shapes;
  for (size_t id = 0; id < program.values.size(); ++id) {
    const Value& value = program.values[id];
    SymbolicShape shape;
    if (value.kind == Value::Kind::Const) {
      shape.known = true;
    } else if (value.kind == Value::Kind::Instruction) {
      shape = shapes[value.operands[0]];
      for (int i = 1; i < info(value.op).arity; ++i) shape = broadcast_shapes(shape, shapes[value.operands[i]]);
    } else if (!value.along_axis) {
      shape = inputs[id];
    } else {
      const bool from_back = value.axis < 0;
      const auto rank = from_back ? static_cast<size_t>(-value.axis) : region_rank;
      const auto axis = from_back ? size_t{0} : static_cast<size_t>(value.axis);
      if (region_known && inputs[id].dims.size() == 1 && rank <= region_rank && axis < rank) {
        shape.known = true;
        shape.dims.assign(rank, Dim{1, ""});
        shape.dims[axis] = inputs[id].dims[0];
      }
    }
    shapes.push_back(std::move(shape));
  }
  return shapes;
}

}  // namespace

bool infer_output_shapes(const OrtApi& api, OrtShapeInferContext* context, OrtStatus** status, std::string* error) {
  std::string text;
  if ((*status = read_attribute(api, context, &text)) != nullptr) return true;
  Program program;
  if (!parse_program(text, &program, error)) {
    *error = "the program attribute is not valid: " + *error;
    return false;
  }
  size_t count = 0;
  if ((*status = api.ShapeInferContext_GetInputCount(context, &count)) != nullptr) return true;
  if (count != program.input_count) {
    *error = "the node has " + std::to_string(count) + " inputs, but its program has " +
             std::to_string(program.input_count);
    return false;
  }
  std::vector<SymbolicShape> inputs(count);
  bool widened = false;
  for (size_t i = 0; i < count; ++i) {
    int type = 0;
    if ((*status = read_input(api, context, i, &inputs[i], &type)) != nullptr) return true;
    widened = widened || (program.values[i].type == DType::f16 && type == info(DType::f32).onnx);
  }
  if (widened) program = widen_half(program);
  const std::vector<SymbolicShape> shapes = infer_values(program, inputs);
  for (size_t o = 0; o < program.outputs.size(); ++o) {
    const uint16_t id = program.outputs[o];
    if ((*status = set_output(api, context, o, program.values[id].type, shapes[id])) != nullptr) return true;
  }
  return true;
}

}  // namespace onnxfuse
