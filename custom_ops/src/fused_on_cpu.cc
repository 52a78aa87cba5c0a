#include "fused_on_cpu.h"

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

template <class Node> NamedOp make(const char* name) { return make_op<Node>(name, cpu_provider); }

template <class Node> NamedOp make_of_floats(const char* name) {
  NamedOp op = make<Node>(name);
  op.element_type = kFloat;
  return op;
}

}  // namespace

std::vector<OpFamily> fused_on_cpu() {
  return {{ONNXFUSE_FUSED_SQUEEZE_EXCITE, make<SqueezeExciteNode>},
          {ONNXFUSE_FUSED_ATTENTION, make<AttentionNode>},
          {ONNXFUSE_FUSED_NORMALIZATION, make<NormalizationNode>},
          {ONNXFUSE_FUSED_NHWC_CONV, make<NhwcConvNode>},
          {ONNXFUSE_FUSED_NHWC_POOL, make_of_floats<NhwcPoolNode>},
          {ONNXFUSE_FUSED_NHWC_CONCAT, make_of_floats<NhwcConcatNode>}};
}

}  // namespace onnxfuse
