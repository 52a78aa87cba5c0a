#include "cuda/conv/cuda_fused_conv_node.h"

#include <utility>
#include <vector>

#include "cuda/conv/cuda_conv_parameters.h"
#include "cuda/driver/cuda_context.h"
#include "cuda/launch/cuda_overlap.h"
#include "cuda/launch/cuda_workspace.h"
#include "platform/error.h"

namespace onnxfuse {

using cuda::CUdeviceptr;
using cuda::CUstream;

CudaFusedConvNode::CudaFusedConvNode(const OrtApi* api, const OrtKernelInfo* info)
    : FusedConvNode(api, info, Provider::Cuda) {
  cuda::translated([&] { read_kernels(info); });
}

void CudaFusedConvNode::read_kernels(const OrtKernelInfo* info) {
  std::string text;
  if (!read_attribute(api(), info, "cuda_recipe", &text)) return;
  std::string error;
  const cuda::ConvOperandCounts counts{node().prologue_operands(), node().epilogue_operands(),
                                       node().epilogue.outputs.size()};
  if (!cuda::parse_conv_recipe(text, counts, &recipe_, &error)) {
    throw Error("the cuda_recipe attribute is not valid: " + error);
  }
  const std::string refusal = device_.load(api(), info, cuda::signatures(recipe_, counts));
  if (!refusal.empty()) warn_once(cuda::refused(refusal));
}

void CudaFusedConvNode::compute(OrtKernelContext* context) {
  cuda::translated([&] { launch_or_compute(context); });
}

void CudaFusedConvNode::launch_or_compute(OrtKernelContext* context) {
  NodeInputs inputs;
  read_inputs(context, &inputs);
  const Kernels kernels = kernels_for(inputs);
  const CUstream stream = cuda::stream_of(api(), context);
  const auto on_host = [&](const std::string& reason) {
    compute_copies(context, kernels, inputs, stream, cuda::refused(reason));
  };
  if (device_.kernels() == nullptr) return on_host("it carries no CUDA kernels");
  if (!kernels.as_written) return on_host("ONNX Runtime has widened its float16 tensors");

  const auto plan = find_plan(inputs.key);
  std::vector<CUdeviceptr> addresses;
  addresses.reserve(inputs.data.size() + output_count());
  for (const void* data : inputs.data) addresses.push_back(cuda::address(data));
  for (size_t o = 0; o < output_count(); ++o) {
    addresses.push_back(cuda::address(output(context, o, plan->output, output_type(node().epilogue, o))));
  }
  if (plan->count == 0) return;
  const cuda::Driver& driver = device_.driver();
  const cuda::ContextKernels& loaded = device_.kernels()->in(cuda::context_of(driver, stream, addresses.back()));
  if (loaded.functions.empty()) return on_host(loaded.refusal);
  const cuda::Overlap overlap(api(), context, device_, stream, inputs.data.size(), plan->extents, &addresses);
  const cuda::ConvLaunch launch(recipe_, *plan, loaded, std::move(addresses));
  const cuda::Workspace workspace(api(), context, launch.workspace_bytes());
  launch(driver, workspace.address(), stream);
  overlap.copy_results();
}

PlanInUse<cuda::ConvPlan> CudaFusedConvNode::find_plan(const PlanKey& key) {
  if (auto plan = plans_.find(key)) return plan;
  std::string error;
  auto plan = cuda::make_conv_plan(node(), recipe_, key, &error);
  if (plan == nullptr) throw Error(error);
  return plans_.add(std::move(plan));
}

void CudaFusedConvNode::compute_copies(OrtKernelContext* context, const Kernels& kernels, const NodeInputs& inputs,
                                       CUstream stream, const std::string& warning) {
  warn_once(warning);
  const std::vector<DType> types = input_types(kernels);
  const SessionHost host = session_host(context);
  cuda::HostCopies copies(device_, stream, host);
  std::vector<const void*> data;
  for (size_t i = 0; i < inputs.data.size(); ++i) {
    const size_t bytes = bytes_of(inputs.key.shapes[i], types[i]);
    data.push_back(copies.of_input(cuda::address(inputs.data[i]), bytes));
  }
  std::vector<void*> outputs(output_count());
  const auto output_memory = [&](size_t o, const Shape& shape, DType type) -> void* {
    return copies.for_output(cuda::address(output(context, o, shape, type)), bytes_of(shape, type));
  };
  compute_on_host(host, kernels, inputs.key, inputs.types, data.data(), outputs.data(), output_memory);
  copies.finish();
}

}  // namespace onnxfuse
