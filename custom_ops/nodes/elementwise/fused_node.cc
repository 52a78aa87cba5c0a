#include "nodes/elementwise/fused_node.h"

#include "platform/error.h"

namespace onnxfuse {

FusedNode::FusedNode(const OrtApi* api, const OrtKernelInfo* info, Provider provider)
    : Node(kOperator, api, info, provider), program_(read_program(api, info, "program")) {
  const Program& program = as_written().program();
  if (input_count() == program.input_count && output_count() == program.outputs.size()) return;
  throw Error("the node has " + std::to_string(input_count()) + " inputs and " + std::to_string(output_count()) +
              " outputs, but its program has " + std::to_string(program.input_count) + " and " +
              std::to_string(program.outputs.size()));
}

ProgramKernel& FusedNode::kernel_for(const std::vector<int>& types) {
  const int none = 0;  // of a Program without inputs no type is read
  const int* const own = types.empty() ? &none : types.data();
  if (ProgramKernel* kernel = program_.kernel_for(own[0], own + 1)) return *kernel;
  const Program& program = as_written().program();
  size_t wrong = 0;
  while (types[wrong] == info(program.values[wrong].type).onnx) ++wrong;
  throw Error("input " + std::to_string(wrong) + " has ONNX element type " + std::to_string(types[wrong]) +
              ", but the program expects " + info(program.values[wrong].type).name);
}

}  // namespace onnxfuse
