// A FusedConv node, whatever provider runs it.
#ifndef ONNXFUSE_FUSED_CONV_NODE_H_
#define ONNXFUSE_FUSED_CONV_NODE_H_

#include <memory>
#include <vector>

#include "convolution/conv_node.h"
#include "nodes/conv/conv_cpu.h"
#include "ort/ort_abi.h"
#include "plan/plan_cache.h"
#include "runtime/node.h"
#include "runtime/node_program.h"

namespace onnxfuse {

// The node on the CPU provider.  Functions throw Error, or what the context throws.
class FusedConvNode : public Node {
 public:
  static constexpr char kOperator[] = "FusedConv";

  explicit FusedConvNode(const NodeDefinition& definition);

  // Tells ORT the types and shapes of such a node's outputs.
  static void infer(const OrtApi& api, OrtShapeInferContext* context);

  void compute(NodeContext& context);

 protected:
  const ConvNode& node() const { return node_; }

  // The CPU's kernels for a run's tensors, whose types differ from the node's if ORT has widened float16.
  struct Kernels {
    DType type = DType::f32;            // of X, W and the result
    ProgramKernel* prologue = nullptr;  // null if there is none
    ProgramKernel* epilogue = nullptr;
    bool as_written = true;
  };
  Kernels kernels_for(const NodeInputs& inputs);

  // The types of all inputs of such kernels.
  static std::vector<DType> input_types(const Kernels& kernels);

  // `data` are the inputs, of these ONNX `types`, in memory of the host, and others afterwards; that of the outputs is of
  // the host too.  There is room for as many `outputs` as the node has.
  void compute_on_host(const Host& host, const Kernels& kernels, const PlanKey& key, const std::vector<int>& types,
                       const void** data, void** outputs, const OutputMemory& output_memory);

 private:
  // Puts the weights of a product, [N, K], in the order [K, N].
  void transpose_weights(size_t element_size, const void* weights, void* transposed) const;
  // Null if the result has no elements.
  PlanInUse<ConvCpuPlan> find_cpu_plan(const Kernels& kernels, const PlanKey& key);
  // For such a result.
  void compute_empty(const Host& host, const Kernels& kernels, const PlanKey& key, const void** epilogue, void** outputs,
                     const OutputMemory& output_memory);

  const ConvNode node_;
  std::unique_ptr<NodeProgram> prologue_;
  NodeProgram epilogue_;
  PlanCache<ConvCpuPlan> cpu_plans_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_FUSED_CONV_NODE_H_
