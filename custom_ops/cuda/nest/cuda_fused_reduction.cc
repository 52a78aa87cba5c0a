#include "cuda/nest/cuda_fused_reduction.h"

#include <algorithm>
#include <vector>

#include "cuda/driver/cuda_context.h"
#include "cuda/launch/cuda_overlap.h"
#include "cuda/launch/cuda_workspace.h"
#include "cuda/nest/cuda_nest_layout.h"
#include "cuda/nest/cuda_nest_parameters.h"
#include "ort/ort_call.h"

namespace onnxfuse {

using cuda::CUdeviceptr;
using cuda::CUstream;

CudaFusedReduction::CudaFusedReduction(const SessionNode& definition)
    : Node(kOperator, definition),
      program_(read_program(definition.attributes(), "program", Reads::Reductions)),
      warning_(definition, place()) {
  check_counts(program_.program());
  cuda::translated([&] { read_kernels(definition.attributes()); });
}

void CudaFusedReduction::read_kernels(const AttributeSource& attributes) {
  std::string text;
  if (!attributes.text("cuda_recipe", &text)) return;
  std::string error;
  const Program& program = program_.program();
  const auto swaps = [](const Value& value) { return value.swaps_halves; };
  if (std::any_of(program.values.begin(), program.values.end(), swaps)) {
    throw Error("the cuda_recipe attribute is for a program that reads no halves in another order");
  }
  const cuda::NestOperands counts = cuda::nest_operands(program);
  if (!cuda::parse_nest_recipe(text, counts, &recipe_, &error)) {
    throw Error("the cuda_recipe attribute is not valid: " + error);
  }
  const std::string refusal = device_.load(attributes, cuda::signatures(recipe_, counts));
  if (!refusal.empty()) warning_.warn_once(cuda::refused(refusal));
}

void CudaFusedReduction::compute(SessionRun& run) {
  cuda::translated([&] { launch_or_compute(run); });
}

void CudaFusedReduction::launch_or_compute(SessionRun& run) {
  NodeInputs inputs;
  read_inputs(run, &inputs);
  NestKernel& kernel = program_.kernel_for(inputs.types);
  const CUstream stream = cuda::stream_of(run);
  const auto on_host = [&](const std::string& reason) {
    compute_on_host(run, &kernel, inputs, stream, cuda::refused(reason));
  };
  if (device_.kernels() == nullptr) return on_host("it carries no CUDA kernels");
  if (&kernel != &program_.as_written()) return on_host("ONNX Runtime has widened its float16 tensors");

  const auto plan = find_plan(inputs.key);
  if (plan->writes_without_rows) {  // of which no kernel is to be launched
    const std::string reason = "an output has elements although there are no rows";
    return compute_on_host(run, &kernel, inputs, stream, cuda::on_the_cpu(reason));
  }
  std::vector<CUdeviceptr> tensors;
  tensors.reserve(inputs.data.size() + plan->output_shapes.size());
  for (const void* data : inputs.data) tensors.push_back(cuda::address(data));
  for (size_t o = 0; o < plan->output_shapes.size(); ++o) {
    const DType type = output_type(program_.program(), o);
    tensors.push_back(cuda::address(output(run, o, plan->output_shapes[o], type)));
  }
  if (plan->rows == 0) return;
  const cuda::Driver& driver = device_.driver();
  const cuda::ContextKernels& loaded = device_.kernels()->in(cuda::context_of(driver, stream, tensors.back()));
  if (loaded.functions.empty()) return on_host(loaded.refusal);
  const cuda::Overlap overlap(run, device_, stream, inputs.data.size(), plan->extents, &tensors);
  const cuda::NestLaunch launch(recipe_, *plan, loaded, tensors);
  const cuda::Workspace workspace(run, launch.workspace_bytes());
  launch(driver, workspace.address(), stream);
  overlap.copy_results();
}

PlanInUse<cuda::NestPlan> CudaFusedReduction::find_plan(const PlanKey& key) {
  if (auto plan = plans_.find(key)) return plan;
  std::string error;
  auto plan = cuda::make_nest_plan(program_.program(), recipe_, key, &error);
  if (plan == nullptr) throw Error(error);
  return plans_.add(std::move(plan));
}

void CudaFusedReduction::compute_on_host(SessionRun& run, NestKernel* kernel, const NodeInputs& inputs,
                                         CUstream stream, const std::string& warning) {
  warning_.warn_once(warning);
  cuda::compute_on_copies(device_, stream, run.host(), kernel, inputs,
                          [&](size_t o, const Shape& shape, DType type) { return output(run, o, shape, type); });
}

}  // namespace onnxfuse
