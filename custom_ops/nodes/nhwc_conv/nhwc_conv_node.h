// A FusedNhwcConv node on the CPU provider.
#ifndef ONNXFUSE_NHWC_CONV_NODE_H_
#define ONNXFUSE_NHWC_CONV_NODE_H_

#include "nodes/nhwc_conv/nhwc_conv_plan.h"
#include "ort/node.h"
#include "ort/ort_abi.h"
#include "plan/plan_cache.h"

namespace onnxfuse {

// Functions throw Error or OrtFailure.
class NhwcConvNode : public Node {
 public:
  static constexpr char kOperator[] = "FusedNhwcConv";

  NhwcConvNode(const OrtApi* api, const OrtKernelInfo* info);

  // Tells ORT the types and shapes of such a node's outputs.
  static void infer(const OrtApi& api, OrtShapeInferContext* context);

  void compute(OrtKernelContext* context);

 private:
  void check_types(const std::vector<int>& types) const;

  NhwcConv node_;
  PlanCache<NhwcConvPlan> plans_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_NHWC_CONV_NODE_H_
