// What a node is given by whoever creates and runs it: a session of ORT, or an Executable.
#ifndef ONNXFUSE_NODE_CONTEXT_H_
#define ONNXFUSE_NODE_CONTEXT_H_

#include <cstddef>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "program/attribute_source.h"
#include "program/shape.h"
#include "runtime/host.h"

namespace onnxfuse {

// A node as it is created.
class NodeDefinition {
 public:
  virtual std::string name() const = 0;
  virtual size_t input_count() const = 0;
  virtual size_t output_count() const = 0;
  // As long as this lives.
  virtual AttributeSource attributes() const = 0;

 protected:
  ~NodeDefinition() = default;
};

// The tensors that a run gives a node.  Their memory is that of the same thread's last run, so that a run allocates none.
struct NodeInputs {
  NodeInputs() { swap_with_last(); }
  ~NodeInputs() { swap_with_last(); }
  NodeInputs(const NodeInputs&) = delete;
  NodeInputs& operator=(const NodeInputs&) = delete;

  PlanKey key;                    // their shapes
  std::vector<int> types;         // ONNX element types
  std::vector<const void*> data;  // on the provider's device
  std::vector<void*> outputs;     // room for them

 private:
  void swap_with_last();
};

// One run of a node.  Functions throw Error, or what whoever runs the node throws.
class NodeContext {
 public:
  // Fills in shapes, types and memory, of which there are as many as the node has inputs.
  virtual void read_inputs(NodeInputs* inputs) const = 0;

  // The memory of output `o`, which then has this shape, and its ONNX element type: where ORT knows no rank that is what
  // the model declares.
  virtual void* output(size_t o, const Shape& shape, int* type) = 0;

  // For what is computed on the CPU.
  virtual const Host& host() const = 0;

 protected:
  ~NodeContext() = default;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_NODE_CONTEXT_H_
