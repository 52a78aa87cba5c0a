#include "nodes/elementwise/fused_node.h"

namespace onnxfuse {

FusedNode::FusedNode(const NodeDefinition& definition)
    : Node(kOperator, definition), program_(read_program(definition.attributes(), "program")) {
  check_counts(as_written().program());
}

}  // namespace onnxfuse
