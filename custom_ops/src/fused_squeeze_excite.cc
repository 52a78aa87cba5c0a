#include "fused_squeeze_excite.h"

#include "custom_op.h"
#include "dtype.h"
#include "squeeze_excite_node.h"

namespace onnxfuse {

const std::vector<const OrtCustomOp*>& fused_squeeze_excite() {
  static const std::vector<NamedOp> ops = [] {
    std::vector<NamedOp> made;
    for (const char* name : {ONNXFUSE_FUSED_SQUEEZE_EXCITE_OPS}) {
      made.push_back(make_op<SqueezeExciteNode>(name, cpu_provider));
    }
    return made;
  }();
  static const std::vector<const OrtCustomOp*> pointers = pointers_to(ops);
  return pointers;
}

}  // namespace onnxfuse
