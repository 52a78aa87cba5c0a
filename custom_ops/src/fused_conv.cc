#include "fused_conv.h"

#include "cuda_fused_conv_node.h"
#include "custom_op.h"
#include "dtype.h"
#include "fused_conv_node.h"

namespace onnxfuse {

const std::vector<const OrtCustomOp*>& fused_conv() {
  static const std::vector<NamedOp> ops = [] {
    std::vector<NamedOp> made;
    for (const char* name : {ONNXFUSE_FUSED_CONV_OPS}) {
      made.push_back(make_op<FusedConvNode>(name, cpu_provider));
      made.push_back(make_op<CudaFusedConvNode>(name, cuda_provider));
    }
    return made;
  }();
  static const std::vector<const OrtCustomOp*> pointers = pointers_to(ops);
  return pointers;
}

}  // namespace onnxfuse
