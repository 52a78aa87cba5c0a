// A FusedNhwcConcat node on the CPU provider.
#ifndef ONNXFUSE_NHWC_CONCAT_NODE_H_
#define ONNXFUSE_NHWC_CONCAT_NODE_H_

#include <string>
#include <vector>

#include "nodes/nhwc_concat/nhwc_concat.h"
#include "nodes/planned_node.h"

namespace onnxfuse {

struct NhwcConcatKind {
  static constexpr char kOperator[] = "FusedNhwcConcat";
  using Description = NhwcConcat;
  using Plan = NhwcConcatPlan;

  static bool read(const AttributeSource& attributes, size_t inputs, NhwcConcat* node, std::string* error);
  static std::vector<DType> input_types(const NhwcConcat& node, size_t count);
  static std::vector<DType> output_types(const NhwcConcat& node);
  static bool plan(const NhwcConcat& node, const PlanKey& key, NhwcConcatPlan* plan, std::string* error);
  static void run(const NhwcConcat& node, const NhwcConcatPlan& plan, const NodeInputs& inputs, const Host& host);
  static void infer(const NhwcConcat& node, const InferenceNode& inferred);
};

using NhwcConcatNode = PlannedNode<NhwcConcatKind>;
extern template class PlannedNode<NhwcConcatKind>;

}  // namespace onnxfuse

#endif  // ONNXFUSE_NHWC_CONCAT_NODE_H_
