#include "fused_on_cpu.h"

#include <utility>

#include "attention_node.h"
#include "custom_op.h"
#include "dtype.h"
#include "nhwc_concat_node.h"
#include "nhwc_conv_node.h"
#include "nhwc_pool_node.h"
#include "normalization_node.h"
#include "squeeze_excite_node.h"

namespace onnxfuse {
namespace {

template <class Node> OpFamily family(std::vector<const char*> names) {
  return {std::move(names), [](const char* name) { return make_op<Node>(name, cpu_provider); }};
}

}  // namespace

std::vector<OpFamily> fused_on_cpu() {
  return {family<SqueezeExciteNode>({ONNXFUSE_FUSED_SQUEEZE_EXCITE_OPS}),
          family<AttentionNode>({ONNXFUSE_FUSED_ATTENTION_OPS}),
          family<NormalizationNode>({ONNXFUSE_FUSED_NORMALIZATION_OPS}),
          family<NhwcConvNode>({ONNXFUSE_FUSED_NHWC_CONV_OPS}),
          family<NhwcPoolNode>({ONNXFUSE_FUSED_NHWC_POOL_OPS}),
          family<NhwcConcatNode>({ONNXFUSE_FUSED_NHWC_CONCAT_OPS})};
}

}  // namespace onnxfuse
