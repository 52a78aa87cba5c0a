#include "operators/fused_attention.h"

#include "cuda/attention/cuda_attention_node.h"
#include "nodes/attention/attention_node.h"
#include "ort/custom_op.h"
#include "program/dtype.h"

namespace onnxfuse {

std::vector<OpFamily> fused_attention() {
  return {{ONNXFUSE_FUSED_ATTENTION, [](const char* name) { return make_op<AttentionNode>(name, cpu_provider); }},
          {ONNXFUSE_FUSED_ATTENTION, [](const char* name) { return make_op<CudaAttentionNode>(name, cuda_provider); },
           true}};
}

}  // namespace onnxfuse
