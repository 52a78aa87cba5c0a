#include "operators/fused_elementwise.h"

#include <cstdlib>
#include <vector>

#include "cuda/elementwise/cuda_fused_elementwise.h"
#include "nodes/elementwise/fused_node.h"
#include "ort/custom_op.h"

namespace onnxfuse {
namespace {

// A fused node on the CPU provider.
class CpuFusedElementwise : public FusedNode {
 public:
  using FusedNode::FusedNode;

  void compute(NodeContext& context) {
    NodeInputs inputs;
    read_inputs(context, &inputs);
    kernel_for(inputs.types)
        .compute(context.host(), inputs.key, inputs.data.data(), inputs.outputs.data(),
                 [&](size_t o, const Shape& shape, DType type) { return output(context, o, shape, type); });
  }
};

// On the CPU ORT may give output `o` the memory of input `i`, if it is of the same size and no longer needed, for each of these.
constexpr int kInplaceInputs = 8;
constexpr int kInplaceOutputs = 4;

size_t may_inplace(int** inputs, int** outputs) {
  constexpr size_t count = kInplaceInputs * kInplaceOutputs;
  *inputs = static_cast<int*>(std::malloc(count * sizeof(int)));
  *outputs = static_cast<int*>(std::malloc(count * sizeof(int)));
  if (*inputs == nullptr || *outputs == nullptr) return 0;
  for (int o = 0; o < kInplaceOutputs; ++o) {
    for (int i = 0; i < kInplaceInputs; ++i) {
      (*inputs)[o * kInplaceInputs + i] = i;
      (*outputs)[o * kInplaceInputs + i] = o;
    }
  }
  return count;
}

void release_inplace(int* inputs, int* outputs) {
  std::free(inputs);
  std::free(outputs);
}

NamedOp make_cpu_op(const char* name) {
  NamedOp op = make_op<CpuFusedElementwise>(name, cpu_provider);
  op.GetMayInplace = may_inplace;
  op.ReleaseMayInplace = release_inplace;
  return op;
}

// Outputs get memory of their own on a GPU.  ORT decides on sharing when it creates the session, from sizes alone, and
// asks the operator without showing it the node.  An input of an output's size is not always indexed as the output is:
// when both are smaller than the iteration space, other threads would read what one has already overwritten.  The node
// would have to copy the input first, as it does where a session's bindings make them overlap.
NamedOp make_cuda_op(const char* name) {
  return make_op<CudaFusedElementwise>(name, cuda_provider);
}

}  // namespace

std::vector<OpFamily> fused_elementwise() {
  return {{ONNXFUSE_FUSED_ELEMENTWISE, make_cpu_op}, {ONNXFUSE_FUSED_ELEMENTWISE, make_cuda_op, true}};
}

}  // namespace onnxfuse
