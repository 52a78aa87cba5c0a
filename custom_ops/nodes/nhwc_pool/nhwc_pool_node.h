// A FusedNhwcPool node on the CPU provider.
#ifndef ONNXFUSE_NHWC_POOL_NODE_H_
#define ONNXFUSE_NHWC_POOL_NODE_H_

#include <vector>

#include "nodes/nhwc_pool/nhwc_pool.h"
#include "nodes/planned_node.h"

namespace onnxfuse {

struct NhwcPoolKind {
  static constexpr char kOperator[] = "FusedNhwcPool";
  using Description = NhwcPool;
  using Plan = NhwcPoolPlan;

  static constexpr auto read = read_nhwc_pool;
  static std::vector<DType> input_types(const NhwcPool& node, size_t count);
  static std::vector<DType> output_types(const NhwcPool& node);
  static constexpr auto plan = make_nhwc_pool_plan;
  static void run(const NhwcPool& node, const NhwcPoolPlan& plan, const NodeInputs& inputs, const Host& host);
  static void infer(const NhwcPool& node, const InferenceNode& inferred);
};

using NhwcPoolNode = PlannedNode<NhwcPoolKind>;
extern template class PlannedNode<NhwcPoolKind>;

}  // namespace onnxfuse

#endif  // ONNXFUSE_NHWC_POOL_NODE_H_
