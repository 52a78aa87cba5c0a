// What all nodes have in common, whoever runs them.
#ifndef ONNXFUSE_NODE_H_
#define ONNXFUSE_NODE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "program/attribute_source.h"
#include "program/program.h"
#include "runtime/host.h"
#include "runtime/node_context.h"

namespace onnxfuse {

// "onnxfuse::FusedElementwise node 'name': ", with which every message about a node begins.
std::string place(const char* op, const std::string& name);

// The Program of an attribute.  Throws Error if there is none that is valid.
Program read_program(const AttributeSource& attributes, const char* attribute, Reads reads = Reads::Views);

// The types of what a Program reads beside its first input.
void add_operand_types(const Program& program, std::vector<DType>* types);

// Bytes of a tensor.  Throws Error if they are too many.
size_t bytes_of(const Shape& shape, DType type);

// A class derived from this has `compute`, for a NodeContext or what its provider makes of one.  Functions throw Error, or
// what the context throws.
class Node {
 public:
  Node(const char* op, const NodeDefinition& definition);

  const std::string& place() const { return place_; }

 protected:
  size_t input_count() const { return input_count_; }
  size_t output_count() const { return output_count_; }

  void read_inputs(const NodeContext& context, NodeInputs* inputs) const;

  // Throws Error unless the node has as many inputs and outputs as its Program.
  void check_counts(const Program& program) const;

  // Throws Error unless input `i` of these ONNX element types is of `type`.
  static void check_type(const std::vector<int>& types, size_t i, DType type);

  // The memory of output `o`, on the provider's device.  Throws Error unless the tensor is of `type`.
  static void* output(NodeContext& context, size_t o, const Shape& shape, DType type);

  // Copies every input of these shapes, ONNX element types and `data` that lies where an output does, as a session's
  // bindings may have it, and puts the copy in its place: results are written while inputs are still read.
  static void keep_apart(const Host& host, const void* output, size_t bytes, const std::vector<Shape>& shapes,
                         const std::vector<int>& types, const void** data, std::vector<RunMemory>* copies);
  static void keep_apart(const Host& host, const void* output, size_t bytes, NodeInputs* inputs,
                         std::vector<RunMemory>* copies) {
    keep_apart(host, output, bytes, inputs->key.shapes, inputs->types, inputs->data.data(), copies);
  }

 private:
  std::string place_;
  size_t input_count_;
  size_t output_count_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_NODE_H_
