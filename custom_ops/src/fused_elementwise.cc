#include "fused_elementwise.h"

#include <atomic>
#include <cstdlib>
#include <string>
#include <vector>

#include "cuda_fused_elementwise.h"
#include "fused_node.h"
#include "ort_call.h"
#include "shape_inference.h"

namespace onnxfuse {
namespace {

std::atomic<const OrtApi*> g_api{nullptr};

// A fused node on the CPU provider.
class CpuFusedElementwise : public FusedNode {
 public:
  using FusedNode::FusedNode;

  void compute(OrtKernelContext* context) {
    NodeInputs inputs = read_inputs(context);
    kernel_for(inputs.types)
        .compute(context, inputs.key, std::move(inputs.data),
                 [&](size_t o, const Shape& shape) { return output(context, o, shape); });
  }
};

template <class Node>
OrtStatus* create_kernel(const OrtCustomOp*, const OrtApi* api, const OrtKernelInfo* info, void** kernel) {
  std::string name;
  OrtStatus* status = guarded(api, ORT_FAIL, "", [&] { name = FusedNode::node_name(api, info); });
  if (status != nullptr) return status;
  return guarded(api, ORT_INVALID_GRAPH, place(name), [&] { *kernel = new Node(api, info); });
}

template <class Node>
OrtStatus* compute(void* opaque, OrtKernelContext* context) {
  auto* node = static_cast<Node*>(opaque);
  return guarded(node->api(), ORT_INVALID_ARGUMENT, place(node->name()), [&] { node->compute(context); });
}

OrtStatus* infer_shapes(const OrtCustomOp*, OrtShapeInferContext* context) {
  const OrtApi* api = g_api.load();
  return guarded(api, ORT_INVALID_GRAPH, "onnxfuse::FusedElementwise: ", [&] {
    std::string error;
    OrtStatus* status = nullptr;
    if (!infer_output_shapes(*api, context, &status, &error)) throw Error(error);
    check(status);
  });
}

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

struct NamedOp : OrtCustomOp {
  const char* name;
};

// The operator, but for what in-place memory its kernels bear.
template <class Node>
NamedOp make_op(const char* name, const char* (*provider)(const OrtCustomOp*)) {
  NamedOp op{};
  op.name = name;
  op.version = kOrtApiVersion;
  op.GetName = [](const OrtCustomOp* self) { return static_cast<const NamedOp*>(self)->name; };
  op.GetExecutionProviderType = provider;
  op.GetInputType = [](const OrtCustomOp*, size_t) { return 0; };
  op.GetInputTypeCount = [](const OrtCustomOp*) { return size_t{1}; };
  op.GetOutputType = op.GetInputType;
  op.GetOutputTypeCount = op.GetInputTypeCount;
  op.KernelDestroy = [](void* kernel) { delete static_cast<Node*>(kernel); };
  op.GetInputCharacteristic = [](const OrtCustomOp*, size_t) { return INPUT_OUTPUT_VARIADIC; };
  op.GetOutputCharacteristic = op.GetInputCharacteristic;
  op.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return OrtMemTypeDefault; };
  op.GetVariadicInputMinArity = [](const OrtCustomOp*) { return 0; };
  op.GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 0; };
  op.GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
  op.GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 0; };
  op.CreateKernelV2 = create_kernel<Node>;
  op.KernelComputeV2 = compute<Node>;
  op.InferOutputShapeFn = infer_shapes;
  op.GetStartVersion = [](const OrtCustomOp*) { return 1; };
  op.GetEndVersion = [](const OrtCustomOp*) { return INT32_MAX; };
  op.GetMayInplace = [](int**, int**) { return size_t{0}; };
  op.ReleaseMayInplace = [](int*, int*) {};
  op.GetAliasMap = [](int**, int**) { return size_t{0}; };
  op.ReleaseAliasMap = [](int*, int*) {};
  return op;
}

NamedOp make_cpu_op(const char* name) {
  NamedOp op = make_op<CpuFusedElementwise>(name, [](const OrtCustomOp*) { return "CPUExecutionProvider"; });
  op.GetMayInplace = may_inplace;
  op.ReleaseMayInplace = release_inplace;
  return op;
}

// Outputs get memory of their own on a GPU.  ORT decides on sharing when it creates the session, from sizes alone, and
// asks the operator without showing it the node.  An input of an output's size is not always indexed as the output is:
// when both are smaller than the iteration space, other threads would read what one has already overwritten.  The node
// could then only copy the input first, to memory that it must not allocate while a CUDA graph is captured.
NamedOp make_cuda_op(const char* name) {
  return make_op<CudaFusedElementwise>(name, [](const OrtCustomOp*) { return "CUDAExecutionProvider"; });
}

}  // namespace

const std::vector<const OrtCustomOp*>& fused_elementwise() {
  static const std::vector<NamedOp> ops = [] {
    std::vector<NamedOp> made;
    for (const char* name : {ONNXFUSE_FUSED_OPS}) {
      made.push_back(make_cpu_op(name));
      made.push_back(make_cuda_op(name));
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

void set_api(const OrtApi* api) { g_api.store(api); }

}  // namespace onnxfuse
