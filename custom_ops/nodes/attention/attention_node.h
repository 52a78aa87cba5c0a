// A FusedAttention node on the CPU provider.
#ifndef ONNXFUSE_ATTENTION_NODE_H_
#define ONNXFUSE_ATTENTION_NODE_H_

#include "nodes/attention/attention.h"
#include "ort/node.h"
#include "ort/ort_abi.h"
#include "plan/plan_cache.h"

namespace onnxfuse {

// Functions throw Error or OrtFailure.
class AttentionNode : public Node {
 public:
  static constexpr char kOperator[] = "FusedAttention";

  AttentionNode(const OrtApi* api, const OrtKernelInfo* info);

  // Tells ORT the type and shape of such a node's output.
  static void infer(const OrtApi& api, OrtShapeInferContext* context);

  void compute(OrtKernelContext* context);

 private:
  Attention node_;
  PlanCache<AttentionPlan> plans_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_ATTENTION_NODE_H_
