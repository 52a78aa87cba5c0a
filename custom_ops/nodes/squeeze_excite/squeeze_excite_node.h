// A FusedSqueezeExcite node on the CPU provider.
#ifndef ONNXFUSE_SQUEEZE_EXCITE_NODE_H_
#define ONNXFUSE_SQUEEZE_EXCITE_NODE_H_

#include "nodes/squeeze_excite/squeeze_excite.h"
#include "ort/node.h"
#include "ort/ort_abi.h"
#include "plan/plan_cache.h"

namespace onnxfuse {

// Functions throw Error or OrtFailure.
class SqueezeExciteNode : public Node {
 public:
  static constexpr char kOperator[] = "FusedSqueezeExcite";

  SqueezeExciteNode(const OrtApi* api, const OrtKernelInfo* info);

  // Tells ORT the type and shape of such a node's output.
  static void infer(const OrtApi& api, OrtShapeInferContext* context);

  void compute(OrtKernelContext* context);

 private:
  void check_types(const std::vector<int>& types) const;

  SqueezeExcite node_;
  PlanCache<SqueezeExcitePlan> plans_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_SQUEEZE_EXCITE_NODE_H_
