#include "fused_attention.h"

#include "custom_op.h"
#include "dtype.h"
#include "attention_node.h"

namespace onnxfuse {

const std::vector<const OrtCustomOp*>& fused_attention() {
  static const std::vector<NamedOp> ops = [] {
    std::vector<NamedOp> made;
    for (const char* name : {ONNXFUSE_FUSED_ATTENTION_OPS}) {
      made.push_back(make_op<AttentionNode>(name, cpu_provider));
    }
    return made;
  }();
  static const std::vector<const OrtCustomOp*> pointers = pointers_to(ops);
  return pointers;
}

}  // namespace onnxfuse
