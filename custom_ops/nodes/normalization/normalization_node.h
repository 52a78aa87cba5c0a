// A FusedNormalization node on the CPU provider.
#ifndef ONNXFUSE_NORMALIZATION_NODE_H_
#define ONNXFUSE_NORMALIZATION_NODE_H_

#include <vector>

#include "nodes/normalization/normalization.h"
#include "nodes/planned_node.h"

namespace onnxfuse {

struct NormalizationKind {
  static constexpr char kOperator[] = "FusedNormalization";
  using Description = Normalization;
  using Plan = NormalizationPlan;

  static constexpr auto read = read_normalization;
  static std::vector<DType> input_types(const Normalization& node, size_t count);
  static std::vector<DType> output_types(const Normalization& node);
  static constexpr auto plan = make_normalization_plan;
  static void run(const Normalization& node, const NormalizationPlan& plan, const NodeInputs& inputs, const Host& host);
  static void infer(const Normalization& node, const InferenceNode& inferred);
};

using NormalizationNode = PlannedNode<NormalizationKind>;
extern template class PlannedNode<NormalizationKind>;

}  // namespace onnxfuse

#endif  // ONNXFUSE_NORMALIZATION_NODE_H_
