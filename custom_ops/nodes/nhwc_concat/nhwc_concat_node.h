// A FusedNhwcConcat node on the CPU provider.
#ifndef ONNXFUSE_NHWC_CONCAT_NODE_H_
#define ONNXFUSE_NHWC_CONCAT_NODE_H_

#include "nodes/nhwc_concat/nhwc_concat.h"
#include "ort/node.h"
#include "ort/ort_abi.h"
#include "plan/plan_cache.h"

namespace onnxfuse {

// Functions throw Error or OrtFailure.
class NhwcConcatNode : public Node {
 public:
  static constexpr char kOperator[] = "FusedNhwcConcat";

  NhwcConcatNode(const OrtApi* api, const OrtKernelInfo* info);

  // Tells ORT the type and shape of such a node's output.
  static void infer(const OrtApi& api, OrtShapeInferContext* context);

  void compute(OrtKernelContext* context);

 private:
  PlanCache<NhwcConcatPlan> plans_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_NHWC_CONCAT_NODE_H_
