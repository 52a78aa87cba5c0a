#include "operators/families.h"

#include "operators/fused_attention.h"
#include "operators/fused_conv.h"
#include "operators/fused_elementwise.h"
#include "operators/fused_on_cpu.h"
#include "operators/fused_reduction.h"

namespace onnxfuse {

std::vector<OpFamily> all_families() {
  std::vector<OpFamily> all;
  for (const auto& some : {fused_elementwise(), fused_reduction(), fused_conv(), fused_attention(), fused_on_cpu()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

}  // namespace onnxfuse
