#include "operators/fused_conv.h"

#include "cuda/conv/cuda_fused_conv_node.h"
#include "nodes/conv/fused_conv_node.h"
#include "ort/custom_op.h"
#include "program/dtype.h"

namespace onnxfuse {

std::vector<OpFamily> fused_conv() {
  return {{ONNXFUSE_FUSED_CONV, [](const char* name) { return make_op<FusedConvNode>(name, cpu_provider); }},
          {ONNXFUSE_FUSED_CONV, [](const char* name) { return make_op<CudaFusedConvNode>(name, cuda_provider); }, true}};
}

}  // namespace onnxfuse
