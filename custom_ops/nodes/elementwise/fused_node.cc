#include "nodes/elementwise/fused_node.h"

namespace onnxfuse {

FusedNode::FusedNode(const OrtApi* api, const OrtKernelInfo* info, Provider provider)
    : Node(kOperator, api, info, provider), program_(read_program(api, info, "program")) {
  check_counts(as_written().program());
}

}  // namespace onnxfuse
