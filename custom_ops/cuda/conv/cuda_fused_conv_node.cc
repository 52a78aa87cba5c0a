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

CudaFusedConvNode::CudaFusedConvNode(const SessionNode& definition)
    : FusedConvNode(definition), warning_(definition, place()) {
  cuda::translated([&] { read_kernels(definition.attributes()); });
}

void CudaFusedConvNode::read_kernels(const AttributeSource& attributes) {
  std::string text;
  if (!attributes.text("cuda_recipe", &text)) return;
  std::string error;
  const cuda::ConvOperandCounts counts{node().prologue_operands(), node().epilogue_operands(),
                                       node().epilogue.outputs.size()};
  if (!cuda::parse_conv_recipe(text, counts, &recipe_, &error)) {
    throw Error("the cuda_recipe attribute is not valid: " + error);
  }
  const std::string refusal = device_.load(attributes, cuda::signatures(recipe_, counts));
  if (!refusal.empty()) warning_.warn_once(cuda::refused(refusal));
}

void CudaFusedConvNode::compute(SessionRun& run) {
  cuda::translated([&] { launch_or_compute(run); });
}

void CudaFusedConvNode::launch_or_compute(SessionRun& run) {
  NodeInputs inputs;
  read_inputs(run, &inputs);
  const Kernels kernels = kernels_for(inputs);
  const CUstream stream = cuda::stream_of(run);
  const auto on_host = [&](const std::string& reason) {
    compute_copies(run, kernels, inputs, stream, cuda::refused(reason));
  };
  if (device_.kernels() == nullptr) return on_host("it carries no CUDA kernels");
  if (!kernels.as_written) return on_host("ONNX Runtime has widened its float16 tensors");

  const auto plan = find_plan(inputs.key);
  std::vector<CUdeviceptr> addresses;
  addresses.reserve(inputs.data.size() + output_count());
  for (const void* data : inputs.data) addresses.push_back(cuda::address(data));
  for (size_t o = 0; o < output_count(); ++o) {
    addresses.push_back(cuda::address(output(run, o, plan->output, output_type(node().epilogue, o))));
  }
  if (plan->count == 0) return;
  const cuda::Driver& driver = device_.driver();
  const cuda::ContextKernels& loaded = device_.kernels()->in(cuda::context_of(driver, stream, addresses.back()));
  if (loaded.functions.empty()) return on_host(loaded.refusal);
  const cuda::Overlap overlap(run, device_, stream, inputs.data.size(), plan->extents, &addresses);
  const cuda::ConvLaunch launch(recipe_, *plan, loaded, std::move(addresses));
  const cuda::Workspace workspace(run, launch.workspace_bytes());
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

void CudaFusedConvNode::compute_copies(SessionRun& run, const Kernels& kernels, const NodeInputs& inputs,
                                       CUstream stream, const std::string& warning) {
  warning_.warn_once(warning);
  const std::vector<DType> types = input_types(kernels);
  const Host& host = run.host();
  cuda::HostCopies copies(device_, stream, host);
  std::vector<const void*> data;
  for (size_t i = 0; i < inputs.data.size(); ++i) {
    const size_t bytes = bytes_of(inputs.key.shapes[i], types[i]);
    data.push_back(copies.of_input(cuda::address(inputs.data[i]), bytes));
  }
  std::vector<void*> outputs(output_count());
  const auto output_memory = [&](size_t o, const Shape& shape, DType type) -> void* {
    return copies.for_output(cuda::address(output(run, o, shape, type)), bytes_of(shape, type));
  };
  compute_on_host(host, kernels, inputs.key, inputs.types, data.data(), outputs.data(), output_memory);
  copies.finish();
}

}  // namespace onnxfuse
