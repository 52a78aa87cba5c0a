#include "runtime/node.h"

#include <algorithm>
#include <cstring>

#include "platform/error.h"
#include "program/dtype.h"

namespace onnxfuse {

std::string place(const char* op, const std::string& name) {
  return "onnxfuse::" + std::string(op) + " node '" + name + "': ";
}

Program read_program(const AttributeSource& attributes, const char* attribute, Reads reads) {
  std::string text;
  if (!attributes.text(attribute, &text)) throw Error("it has no text as attribute " + std::string(attribute));
  Program program;
  std::string error;
  if (parse_program(text, &program, &error, reads)) return program;
  throw Error("the " + std::string(attribute) + " attribute is not valid: " + error);
}

void add_operand_types(const Program& program, std::vector<DType>* types) {
  for (size_t i = 1; i < program.input_count; ++i) types->push_back(program.values[i].type);
}

size_t bytes_of(const Shape& shape, DType type) {
  int64_t count = 0;
  if (!element_count(shape, &count)) throw Error("shape " + to_string(shape) + " has too many elements");
  return static_cast<size_t>(count) * storage_size(type);
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

Node::Node(const char* op, const NodeDefinition& definition)
    : place_(onnxfuse::place(op, definition.name())),
      input_count_(definition.input_count()),
      output_count_(definition.output_count()) {}

void Node::read_inputs(const NodeContext& context, NodeInputs* inputs) const {
  inputs->key.shapes.resize(input_count_);
  inputs->types.resize(input_count_);
  inputs->data.resize(input_count_);
  inputs->outputs.resize(output_count_);
  context.read_inputs(inputs);
}

void Node::check_counts(const Program& program) const {
  if (input_count_ == program.input_count && output_count_ == tensor_count(program)) return;
  throw Error("the node has " + std::to_string(input_count_) + " inputs and " + std::to_string(output_count_) +
              " outputs, but its program has " + std::to_string(program.input_count) + " and " +
              std::to_string(tensor_count(program)));
}

void Node::check_type(const std::vector<int>& types, size_t i, DType type) {
  const int wanted = info(type).onnx;
  if (types[i] == wanted) return;
  throw Error("input " + std::to_string(i) + " has the ONNX element type " + std::to_string(types[i]) + ", not " +
              std::to_string(wanted));
}

void* Node::output(NodeContext& context, size_t o, const Shape& shape, DType type) {
  int declared = 0;
  void* const memory = context.output(o, shape, &declared);
  if (declared == info(type).onnx) return memory;
  throw Error("output " + std::to_string(o) + " has the ONNX element type " + std::to_string(declared) +
              ", but the node computes " + info(type).name);
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

}  // namespace onnxfuse
