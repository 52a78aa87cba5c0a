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

CudaAttentionNode::CudaAttentionNode(const OrtApi* api, const OrtKernelInfo* info)
    : AttentionNode(api, info, Provider::Cuda) {
  cuda::translated([&] { read_kernels(info); });
}

void CudaAttentionNode::read_kernels(const OrtKernelInfo* info) {
  std::string text;
  if (!read_attribute(api(), info, "cuda_recipe", &text)) return;
  std::string error;
  if (!cuda::parse_attention_recipe(text, node(), &recipe_, &error)) {
    throw Error("the cuda_recipe attribute is not valid: " + error);
  }
  const std::string refusal = device_.load(api(), info, cuda::signatures(recipe_));
  if (!refusal.empty()) warn_once(cuda::refused(refusal));
}

void CudaAttentionNode::compute(OrtKernelContext* context) {
  cuda::translated([&] { launch_or_compute(context); });
}

void CudaAttentionNode::launch_or_compute(OrtKernelContext* context) {
  NodeInputs inputs;
  read_inputs(context, &inputs);
  const DType type = type_of(inputs.types);
  const CUstream stream = cuda::stream_of(api(), context);
  const auto on_host = [&](const std::string& reason) {
    compute_copies(context, inputs, stream, cuda::refused(reason));
  };
  if (device_.kernels() == nullptr) return on_host("it carries no CUDA kernels");
  if (type != recipe_.type) return on_host("its tensors are of another type than its kernels");

  const auto plan = find_cuda_plan(inputs.key);
  std::vector<CUdeviceptr> addresses;
  addresses.reserve(inputs.data.size() + 1);
  for (const void* data : inputs.data) addresses.push_back(cuda::address(data));
  addresses.push_back(cuda::address(output(context, 0, plan->layout.output, type)));
  if (plan->layout.count == 0) return;
  const cuda::Driver& driver = device_.driver();
  const cuda::ContextKernels& loaded = device_.kernels()->in(cuda::context_of(driver, stream, addresses.back()));
  if (loaded.functions.empty()) return on_host(loaded.refusal);
  const cuda::Overlap overlap(api(), context, device_, stream, inputs.data.size(), plan->extents, &addresses);
  const cuda::AttentionLaunch launch(node(), recipe_, *plan, loaded, addresses);
  const cuda::Workspace workspace(api(), context, launch.workspace_bytes());
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

void CudaAttentionNode::compute_copies(OrtKernelContext* context, const NodeInputs& inputs, CUstream stream,
                                       const std::string& warning) {
  warn_once(warning);
  const DType type = type_of(inputs.types);
  const SessionHost host = session_host(context);
  cuda::HostCopies copies(device_, stream, host);
  std::vector<const void*> data;
  for (size_t i = 0; i < inputs.data.size(); ++i) {
    const size_t bytes = bytes_of(inputs.key.shapes[i], is_choice(i) ? DType::boolean : type);
    data.push_back(copies.of_input(cuda::address(inputs.data[i]), bytes));
  }
  compute_on_host(host, inputs.key, type, data, [&](const Shape& shape) {
    return copies.for_output(cuda::address(output(context, 0, shape, type)), bytes_of(shape, type));
  });
  copies.finish();
}

}  // namespace onnxfuse
