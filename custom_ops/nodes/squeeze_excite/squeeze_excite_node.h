// A FusedSqueezeExcite node on the CPU provider.
#ifndef ONNXFUSE_SQUEEZE_EXCITE_NODE_H_
#define ONNXFUSE_SQUEEZE_EXCITE_NODE_H_

#include <vector>

#include "nodes/squeeze_excite/squeeze_excite.h"
#include "nodes/planned_node.h"

namespace onnxfuse {

struct SqueezeExciteKind {
  static constexpr char kOperator[] = "FusedSqueezeExcite";
  using Description = SqueezeExcite;
  using Plan = SqueezeExcitePlan;

  static constexpr auto read = read_squeeze_excite;
  static std::vector<DType> input_types(const SqueezeExcite& node, size_t count);
  static std::vector<DType> output_types(const SqueezeExcite& node);
  static constexpr auto plan = make_squeeze_excite_plan;
  static void run(const SqueezeExcite& node, const SqueezeExcitePlan& plan, const NodeInputs& inputs, const Host& host);
  static void infer(const SqueezeExcite& node, const InferenceNode& inferred);
};

using SqueezeExciteNode = PlannedNode<SqueezeExciteKind>;
extern template class PlannedNode<SqueezeExciteKind>;

}  // namespace onnxfuse

#endif  // ONNXFUSE_SQUEEZE_EXCITE_NODE_H_
