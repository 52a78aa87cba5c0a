#include "cuda/attention/cuda_attention_node.h"

#include <utility>
#include <vector>

#include "cuda/driver/cuda_context.h"
#include "cuda/launch/cuda_overlap.h"
#include "cuda/launch/cuda_workspace.h"
#include "platform/error.h"

namespace onnxfuse {

using cuda::CUdeviceptr;
using cuda::CUstream;

CudaAttentionNode::CudaAttentionNode(const SessionNode& definition)
    : AttentionNode(definition), warning_(definition, place()) {
  cuda::translated([&] { read_kernels(definition.attributes()); });
}

void CudaAttentionNode::read_kernels(const AttributeSource& attributes) {
  std::string text;
  if (!attributes.text("cuda_recipe", &text)) return;
  std::string error;
  if (!cuda::parse_attention_recipe(text, node(), &recipe_, &error)) {
    throw Error("the cuda_recipe attribute is not valid: " + error);
  }
  const std::string refusal = device_.load(attributes, cuda::signatures(recipe_));
  if (!refusal.empty()) warning_.warn_once(cuda::refused(refusal));
}

void CudaAttentionNode::compute(SessionRun& run) {
  cuda::translated([&] { launch_or_compute(run); });
}

void CudaAttentionNode::launch_or_compute(SessionRun& run) {
  NodeInputs inputs;
  read_inputs(run, &inputs);
  const DType type = type_of(inputs.types);
  const CUstream stream = cuda::stream_of(run);
  const auto on_host = [&](const std::string& reason) {
    compute_copies(run, inputs, stream, cuda::refused(reason));
  };
  if (device_.kernels() == nullptr) return on_host("it carries no CUDA kernels");
  if (type != recipe_.type) return on_host("its tensors are of another type than its kernels");

  const auto plan = find_cuda_plan(inputs.key);
  std::vector<CUdeviceptr> addresses;
  addresses.reserve(inputs.data.size() + 1);
  for (const void* data : inputs.data) addresses.push_back(cuda::address(data));
  addresses.push_back(cuda::address(output(run, 0, plan->layout.output, type)));
  if (plan->layout.count == 0) return;
  const cuda::Driver& driver = device_.driver();
  const cuda::ContextKernels& loaded = device_.kernels()->in(cuda::context_of(driver, stream, addresses.back()));
  if (loaded.functions.empty()) return on_host(loaded.refusal);
  const cuda::Overlap overlap(run, device_, stream, inputs.data.size(), plan->extents, &addresses);
  const cuda::AttentionLaunch launch(node(), recipe_, *plan, loaded, addresses);
  const cuda::Workspace workspace(run, launch.workspace_bytes());
  launch(driver, workspace.address(), stream);
  overlap.copy_results();
}

PlanInUse<cuda::AttentionCudaPlan> CudaAttentionNode::find_cuda_plan(const PlanKey& key) {
  if (auto plan = cuda_plans_.find(key)) return plan;
  std::string error;
  auto plan = cuda::make_attention_cuda_plan(node(), recipe_, key, &error);
  if (plan == nullptr) throw Error(error);
  return cuda_plans_.add(std::move(plan));
}

void CudaAttentionNode::compute_copies(SessionRun& run, const NodeInputs& inputs, CUstream stream,
                                       const std::string& warning) {
  warning_.warn_once(warning);
  const DType type = type_of(inputs.types);
  const Host& host = run.host();
  cuda::HostCopies copies(device_, stream, host);
  std::vector<const void*> data;
  for (size_t i = 0; i < inputs.data.size(); ++i) {
    const size_t bytes = bytes_of(inputs.key.shapes[i], is_choice(i) ? DType::boolean : type);
    data.push_back(copies.of_input(cuda::address(inputs.data[i]), bytes));
  }
  compute_on_host(host, inputs.key, type, data, [&](const Shape& shape) {
    return copies.for_output(cuda::address(output(run, 0, shape, type)), bytes_of(shape, type));
  });
  copies.finish();
}

}  // namespace onnxfuse
