#include "fused_on_cpu.h"

#include <initializer_list>

#include "attention_node.h"
#include "custom_op.h"
#include "dtype.h"
#include "nhwc_conv_node.h"
#include "nhwc_pool_node.h"
#include "normalization_node.h"
#include "squeeze_excite_node.h"

namespace onnxfuse {
namespace {

template <class Node>
void add(std::initializer_list<const char*> names, std::vector<NamedOp>* ops) {
  for (const char* name : names) ops->push_back(make_op<Node>(name, cpu_provider));
}

}  // namespace

const std::vector<const OrtCustomOp*>& fused_on_cpu() {
  static const std::vector<NamedOp> ops = [] {
    std::vector<NamedOp> made;
    add<SqueezeExciteNode>({ONNXFUSE_FUSED_SQUEEZE_EXCITE_OPS}, &made);
    add<AttentionNode>({ONNXFUSE_FUSED_ATTENTION_OPS}, &made);
    add<NormalizationNode>({ONNXFUSE_FUSED_NORMALIZATION_OPS}, &made);
    add<NhwcConvNode>({ONNXFUSE_FUSED_NHWC_CONV_OPS}, &made);
    add<NhwcPoolNode>({ONNXFUSE_FUSED_NHWC_POOL_OPS}, &made);
    return made;
  }();
  static const std::vector<const OrtCustomOp*> pointers = pointers_to(ops);
  return pointers;
}

}  // namespace onnxfuse
