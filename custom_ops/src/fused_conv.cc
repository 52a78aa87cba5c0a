#include "fused_conv.h"

#include "cuda_fused_conv_node.h"
#include "custom_op.h"
#include "dtype.h"
#include "fused_conv_node.h"

namespace onnxfuse {

std::vector<OpFamily> fused_conv() {
  return {{ONNXFUSE_FUSED_CONV, [](const char* name) { return make_op<FusedConvNode>(name, cpu_provider); }},
          {ONNXFUSE_FUSED_CONV, [](const char* name) { return make_op<CudaFusedConvNode>(name, cuda_provider); }, true}};
}

}  // namespace onnxfuse
