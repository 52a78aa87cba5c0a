#include "operators/fused_reduction.h"

#include "cuda/nest/cuda_fused_reduction.h"
#include "nodes/reduction/reduction_node.h"
#include "ort/custom_op.h"
#include "program/dtype.h"

namespace onnxfuse {

std::vector<OpFamily> fused_reduction() {
  return {{ONNXFUSE_FUSED_REDUCTION, [](const char* name) { return make_op<ReductionNode>(name, cpu_provider); }},
          {ONNXFUSE_FUSED_REDUCTION, [](const char* name) { return make_op<CudaFusedReduction>(name, cuda_provider); },
           true}};
}

}  // namespace onnxfuse
