// A FusedReduction node on the CPU provider.
#ifndef ONNXFUSE_REDUCTION_NODE_H_
#define ONNXFUSE_REDUCTION_NODE_H_

#include "nest/nest_kernel.h"
#include "ort/ort_abi.h"
#include "runtime/node.h"
#include "runtime/node_program.h"

namespace onnxfuse {

// Functions throw Error, or what the context throws.
class ReductionNode : public Node {
 public:
  static constexpr char kOperator[] = "FusedReduction";

  explicit ReductionNode(const NodeDefinition& definition);

  // Tells ORT the types and shapes of such a node's outputs.
  static void infer(const OrtApi& api, OrtShapeInferContext* context);

  void compute(NodeContext& context);

 private:
  NodeProgramOf<NestKernel> program_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_REDUCTION_NODE_H_
