#include "fused_normalization.h"

#include "custom_op.h"
#include "dtype.h"
#include "normalization_node.h"

namespace onnxfuse {

const std::vector<const OrtCustomOp*>& fused_normalization() {
  static const std::vector<NamedOp> ops = [] {
    std::vector<NamedOp> made;
    for (const char* name : {ONNXFUSE_FUSED_NORMALIZATION_OPS}) {
      made.push_back(make_op<NormalizationNode>(name, cpu_provider));
    }
    return made;
  }();
  static const std::vector<const OrtCustomOp*> pointers = pointers_to(ops);
  return pointers;
}

}  // namespace onnxfuse
