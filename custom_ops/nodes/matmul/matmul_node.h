// A FusedMatMul node on the CPU provider.
#ifndef ONNXFUSE_MATMUL_NODE_H_
#define ONNXFUSE_MATMUL_NODE_H_

#include <vector>

#include "nodes/matmul/matmul.h"
#include "nodes/planned_node.h"

namespace onnxfuse {

struct MatMulKind {
  static constexpr char kOperator[] = "FusedMatMul";
  using Description = MatMul;
  using Plan = NhwcConvPlan;

  static constexpr auto read = read_matmul;
  static std::vector<DType> input_types(const MatMul& node, size_t count);
  static std::vector<DType> output_types(const MatMul& node);
  static constexpr auto plan = make_matmul_plan;
  static void run(const MatMul& node, const NhwcConvPlan& plan, const NodeInputs& inputs, const Host& host);
  static void infer(const MatMul& node, const InferenceNode& inferred);
};

using MatMulNode = PlannedNode<MatMulKind>;
extern template class PlannedNode<MatMulKind>;

}  // namespace onnxfuse

#endif  // ONNXFUSE_MATMUL_NODE_H_
