// A FusedAttention node, whatever provider runs it.
#ifndef ONNXFUSE_ATTENTION_NODE_H_
#define ONNXFUSE_ATTENTION_NODE_H_

#include <functional>
#include <vector>

#include "nodes/attention/attention.h"
#include "ort/ort_abi.h"
#include "plan/plan_cache.h"
#include "program/dtype.h"
#include "runtime/node.h"

namespace onnxfuse {

// The node on the CPU provider.  Functions throw Error, or what the context throws.
class AttentionNode : public Node {
 public:
  static constexpr char kOperator[] = "FusedAttention";

  explicit AttentionNode(const NodeDefinition& definition);

  // Tells ORT the type and shape of such a node's output.
  static void infer(const OrtApi& api, OrtShapeInferContext* context);

  void compute(NodeContext& context);

 protected:
  const Attention& node() const { return node_; }
  bool is_choice(size_t input) const { return node_.chosen && input == node_.choice_input(); }

  // The type of Q, K, V, the mask and the output, by the ONNX element types of the inputs.
  DType type_of(const std::vector<int>& types) const;

  // `data` are the inputs, in memory of the host; `output_memory` gives that of the output.
  void compute_on_host(const Host& host, const PlanKey& key, DType type, const std::vector<const void*>& data,
                       const std::function<void*(const Shape& shape)>& output_memory);

 private:
  PlanInUse<AttentionPlan> find_plan(const PlanKey& key);

  Attention node_;
  PlanCache<AttentionPlan> plans_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_ATTENTION_NODE_H_
