// A FusedNormalization node on the CPU provider.
#ifndef ONNXFUSE_NORMALIZATION_NODE_H_
#define ONNXFUSE_NORMALIZATION_NODE_H_

#include "nodes/normalization/normalization.h"
#include "ort/node.h"
#include "ort/ort_abi.h"
#include "plan/plan_cache.h"

namespace onnxfuse {

// Functions throw Error or OrtFailure.
class NormalizationNode : public Node {
 public:
  static constexpr char kOperator[] = "FusedNormalization";

  NormalizationNode(const OrtApi* api, const OrtKernelInfo* info);

  // Tells ORT the types and shapes of such a node's outputs.
  static void infer(const OrtApi& api, OrtShapeInferContext* context);

  void compute(OrtKernelContext* context);

 private:
  void check_types(const std::vector<int>& types) const;

  Normalization node_;
  PlanCache<NormalizationPlan> plans_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_NORMALIZATION_NODE_H_
