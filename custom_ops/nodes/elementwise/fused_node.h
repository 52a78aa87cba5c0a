// A FusedElementwise node: its Program, whatever provider runs it.
#ifndef ONNXFUSE_FUSED_NODE_H_
#define ONNXFUSE_FUSED_NODE_H_

#include <vector>

#include "ort/ort_abi.h"
#include "ort/shape_inference.h"
#include "runtime/node.h"
#include "runtime/node_program.h"

namespace onnxfuse {

// Functions throw Error, or what the context throws.
class FusedNode : public Node {
 public:
  static constexpr char kOperator[] = "FusedElementwise";

  explicit FusedNode(const NodeDefinition& definition);

  // Tells ORT the types and shapes of such a node's outputs.
  static void infer(const OrtApi& api, OrtShapeInferContext* context) { infer_output_shapes(api, context); }

 protected:
  // The CPU's kernel for inputs of these types.
  ProgramKernel& kernel_for(const std::vector<int>& types) { return program_.kernel_for(types); }

  // The kernel of the Program to the letter.
  ProgramKernel& as_written() { return program_.as_written(); }

 private:
  NodeProgram program_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_FUSED_NODE_H_
