// A FusedNhwcPool node on the CPU provider.
#ifndef ONNXFUSE_NHWC_POOL_NODE_H_
#define ONNXFUSE_NHWC_POOL_NODE_H_

#include "nodes/nhwc_pool/nhwc_pool.h"
#include "ort/node.h"
#include "ort/ort_abi.h"
#include "plan/plan_cache.h"

namespace onnxfuse {

// Functions throw Error or OrtFailure.
class NhwcPoolNode : public Node {
 public:
  static constexpr char kOperator[] = "FusedNhwcPool";

  NhwcPoolNode(const OrtApi* api, const OrtKernelInfo* info);

  // Tells ORT the type and shape of such a node's output.
  static void infer(const OrtApi& api, OrtShapeInferContext* context);

  void compute(OrtKernelContext* context);

 private:
  NhwcPool node_;
  PlanCache<NhwcPoolPlan> plans_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_NHWC_POOL_NODE_H_
