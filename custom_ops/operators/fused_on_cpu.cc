#include "operators/fused_on_cpu.h"

#include "nodes/matmul/matmul_node.h"
#include "nodes/nhwc_concat/nhwc_concat_node.h"
#include "nodes/nhwc_conv/nhwc_conv_node.h"
#include "nodes/nhwc_pool/nhwc_pool_node.h"
#include "nodes/squeeze_excite/squeeze_excite_node.h"
#include "ort/custom_op.h"
#include "program/dtype.h"

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
          {ONNXFUSE_FUSED_MAT_MUL, make<MatMulNode>},
          {ONNXFUSE_FUSED_NHWC_CONV, make<NhwcConvNode>},
          {ONNXFUSE_FUSED_NHWC_POOL, make_of_floats<NhwcPoolNode>},
          {ONNXFUSE_FUSED_NHWC_CONCAT, make_of_floats<NhwcConcatNode>}};
}

}  // namespace onnxfuse
