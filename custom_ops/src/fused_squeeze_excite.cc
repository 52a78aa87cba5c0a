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
  static const std::vector<const OrtCustomOp*> pointers = [] {
    std::vector<const OrtCustomOp*> found;
    for (const NamedOp& op : ops) found.push_back(&op);
    return found;
  }();
  return pointers;
}

}  // namespace onnxfuse
