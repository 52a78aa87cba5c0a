// A FusedNhwcConv node on the CPU provider.
#ifndef ONNXFUSE_NHWC_CONV_NODE_H_
#define ONNXFUSE_NHWC_CONV_NODE_H_

#include <vector>

#include "nodes/nhwc_conv/nhwc_conv_plan.h"
#include "nodes/planned_node.h"

namespace onnxfuse {

struct NhwcConvKind {
  static constexpr char kOperator[] = "FusedNhwcConv";
  using Description = NhwcConv;
  using Plan = NhwcConvPlan;

  static constexpr auto read = read_nhwc_conv;
  static std::vector<DType> input_types(const NhwcConv& node, size_t count);
  static std::vector<DType> output_types(const NhwcConv& node);
  static constexpr auto plan = make_nhwc_conv_plan;
  static void run(const NhwcConv& node, const NhwcConvPlan& plan, const NodeInputs& inputs, const Host& host);
  static void infer(const NhwcConv& node, const InferenceNode& inferred);
};

using NhwcConvNode = PlannedNode<NhwcConvKind>;
extern template class PlannedNode<NhwcConvKind>;

}  // namespace onnxfuse

#endif  // ONNXFUSE_NHWC_CONV_NODE_H_
