// ONNX Runtime's custom operators: the callbacks around the classes that do the work.
#ifndef ONNXFUSE_CUSTOM_OP_H_
#define ONNXFUSE_CUSTOM_OP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ort/ort_abi.h"
#include "ort/ort_call.h"
#include "ort/session_node.h"
#include "runtime/node.h"

namespace onnxfuse {

// Makes known an ONNX Runtime that has this table, before its operators are registered, by one thread at a time.  A process
// may have several copies.
void add_runtime(const OrtApi* api, const OrtApiBase& base);

// Whether a table is that of one of them.
bool is_runtime(const OrtApi* api);

// Its table as of version 24; null if it is older.
const OrtApi24* newer_api(const OrtApi* api);

// An entry of a session's configuration; false if there is none.  Throws OrtFailure.
bool read_config_entry(const OrtApi* api, const OrtSessionOptions* options, const char* key, std::string* value);

// A node on the CPU of which nothing is known but that.
class AnyNode {
 public:
  virtual ~AnyNode() = default;
  // With what messages about it begin.
  virtual const std::string& place() const = 0;
  // Throws Error, or what the context throws.
  virtual void compute(NodeContext& context) = 0;
};

struct NamedOp : OrtCustomOp {
  const char* name;
  // Makes such a node for who is no session; null where only a session can run it.  Throws Error.
  std::unique_ptr<AnyNode> (*make_node)(const NodeDefinition& definition);
  int element_type;  // ONNX's number of that of all inputs and outputs; 0: any
  const OrtApi* api;  // of the ONNX Runtime that it is registered with
};

constexpr int kFloat = 1;  // ONNX's number

// Operators that differ in nothing but their names (operator_names.h), of which the first `plain` are registered for a
// session that says nothing of its model.
struct OpFamily {
  const char* name;
  int plain;
  NamedOp (*make)(const char* name);
  bool on_gpu = false;
};

// Whether a node needs nothing that only sessions have.
template <class Node>
constexpr bool kRunsAnywhere = std::is_constructible_v<Node, const NodeDefinition&>;

template <class Node>
std::unique_ptr<AnyNode> make_any_node(const NodeDefinition& definition) {
  struct Made final : AnyNode {
    explicit Made(const NodeDefinition& own) : node(own) {}
    const std::string& place() const override { return node.place(); }
    void compute(NodeContext& context) override { node.compute(context); }
    Node node;
  };
  return std::make_unique<Made>(definition);
}

// A node that a session has.  On a GPU ORT has no memory of the host for it.
template <class Node>
struct SessionKernel {
  SessionKernel(const OrtApi* ort, const OrtKernelInfo* info)
      : api(ort), newer(newer_api(ort)), allocator(ort, kRunsAnywhere<Node> ? info : nullptr), node(SessionNode(ort, info)) {}

  const OrtApi* api;
  const OrtApi24* newer;
  SessionAllocator allocator;
  Node node;
};

template <class Node>
OrtStatus* create_kernel(const OrtCustomOp*, const OrtApi* api, const OrtKernelInfo* info, void** kernel) {
  std::string name;
  OrtStatus* status = guarded(api, ORT_FAIL, "", [&] { name = node_name(api, info); });
  if (status != nullptr) return status;
  return guarded(api, ORT_INVALID_GRAPH, place(Node::kOperator, name),
                 [&] { *kernel = new SessionKernel<Node>(api, info); });
}

template <class Node>
OrtStatus* compute(void* opaque, OrtKernelContext* context) {
  auto* const kernel = static_cast<SessionKernel<Node>*>(opaque);
  return guarded(kernel->api, ORT_INVALID_ARGUMENT, kernel->node.place(), [&] {
    SessionRun run(kernel->api, kernel->newer, context, kernel->allocator.get());
    kernel->node.compute(run);
  });
}

// Node::infer throws Error or OrtFailure.
template <class Node>
OrtStatus* infer_shapes(const OrtCustomOp* op, OrtShapeInferContext* context) {
  const OrtApi* api = static_cast<const NamedOp*>(op)->api;
  return guarded(api, ORT_INVALID_GRAPH, "onnxfuse::" + std::string(Node::kOperator) + ": ",
                 [&] { Node::infer(*api, context); });
}

// The operator, of any tensors, whose outputs have memory of their own.
template <class Node>
NamedOp make_op(const char* name, const char* (*provider)(const OrtCustomOp*)) {
  NamedOp op{};
  op.name = name;
  op.version = kOrtApiVersion;
  op.GetName = [](const OrtCustomOp* self) { return static_cast<const NamedOp*>(self)->name; };
  op.GetExecutionProviderType = provider;
  op.GetInputType = [](const OrtCustomOp* self, size_t) { return static_cast<const NamedOp*>(self)->element_type; };
  op.GetInputTypeCount = [](const OrtCustomOp*) { return size_t{1}; };
  op.GetOutputType = op.GetInputType;
  op.GetOutputTypeCount = op.GetInputTypeCount;
  op.KernelDestroy = [](void* kernel) { delete static_cast<SessionKernel<Node>*>(kernel); };
  op.GetInputCharacteristic = [](const OrtCustomOp*, size_t) { return INPUT_OUTPUT_VARIADIC; };
  op.GetOutputCharacteristic = op.GetInputCharacteristic;
  op.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return OrtMemTypeDefault; };
  op.GetVariadicInputMinArity = [](const OrtCustomOp*) { return 0; };
  op.GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 0; };
  op.GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
  op.GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 0; };
  if constexpr (kRunsAnywhere<Node>) op.make_node = make_any_node<Node>;
  op.CreateKernelV2 = create_kernel<Node>;
  op.KernelComputeV2 = compute<Node>;
  op.InferOutputShapeFn = infer_shapes<Node>;
  op.GetStartVersion = [](const OrtCustomOp*) { return 1; };
  op.GetEndVersion = [](const OrtCustomOp*) { return INT32_MAX; };
  op.GetMayInplace = [](int**, int**) { return size_t{0}; };
  op.ReleaseMayInplace = [](int*, int*) {};
  op.GetAliasMap = [](int**, int**) { return size_t{0}; };
  op.ReleaseAliasMap = [](int*, int*) {};
  return op;
}

inline const char* cpu_provider(const OrtCustomOp*) { return "CPUExecutionProvider"; }
inline const char* cuda_provider(const OrtCustomOp*) { return "CUDAExecutionProvider"; }

}  // namespace onnxfuse

#endif  // ONNXFUSE_CUSTOM_OP_H_
