#include "fused_reduction.h"

#include "cuda_fused_reduction.h"
#include "custom_op.h"
#include "dtype.h"
#include "reduction_node.h"

namespace onnxfuse {

std::vector<OpFamily> fused_reduction() {
  return {{ONNXFUSE_FUSED_REDUCTION, [](const char* name) { return make_op<ReductionNode>(name, cpu_provider); }},
          {ONNXFUSE_FUSED_REDUCTION, [](const char* name) { return make_op<CudaFusedReduction>(name, cuda_provider); },
           true}};
}

}  // namespace onnxfuse
