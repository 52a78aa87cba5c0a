#include "cuda/elementwise/cuda_fused_elementwise.h"

#include <algorithm>
#include <utility>

#include "cuda/driver/cuda_context.h"
#include "cuda/launch/cuda_overlap.h"
#include "platform/error.h"

namespace onnxfuse {

using cuda::CUdeviceptr;
using cuda::CUstream;

namespace {

// Whether the elements of every output lie in the order in which they are computed.
bool writes_in_order(const Program& program) {
  const auto moves = [](const ViewStep& step) {
    return step.kind == ViewStep::Kind::Slice || step.kind == ViewStep::Kind::Permute;
  };
  return std::none_of(program.output_views.begin(), program.output_views.end(),
                      [&](const auto& steps) { return std::any_of(steps.begin(), steps.end(), moves); });
}

}  // namespace

CudaFusedElementwise::CudaFusedElementwise(const SessionNode& definition)
    : FusedNode(definition), warning_(definition, place()) {
  cuda::translated([&] { read_kernels(definition.attributes()); });
}

void CudaFusedElementwise::read_kernels(const AttributeSource& attributes) {
  std::string text;
  if (!attributes.text("cuda_recipe", &text)) return;
  std::string error;
  const Program& program = as_written().program();
  if (!writes_in_order(program)) throw Error("the cuda_recipe attribute is for a program that writes in its own order");
  if (!cuda::parse_node_recipe(text, program, &recipe_, &error)) {
    throw Error("the cuda_recipe attribute is not valid: " + error);
  }
  const std::string refusal = device_.load(attributes, cuda::signatures(recipe_));
  if (!refusal.empty()) warning_.warn_once(cuda::refused(refusal));
}

void CudaFusedElementwise::compute(SessionRun& run) {
  cuda::translated([&] { launch_or_compute(run); });
}

void CudaFusedElementwise::launch_or_compute(SessionRun& run) {
  NodeInputs inputs;
  read_inputs(run, &inputs);
  ProgramKernel& kernel = kernel_for(inputs.types);
  const CUstream stream = cuda::stream_of(run);
  const auto on_host = [&](const std::string& reason) {
    compute_on_host(run, &kernel, inputs, stream, cuda::refused(reason));
  };
  if (device_.kernels() == nullptr) return on_host("it carries no CUDA kernels");
  if (&kernel != &as_written()) return on_host("ONNX Runtime has widened its float16 tensors");

  const auto plan = find_plan(inputs.key);
  if (plan->writes_without_elements) {  // of which no kernel is to be launched
    const std::string reason = "an output has elements although an input has none";
    return compute_on_host(run, &kernel, inputs, stream, cuda::on_the_cpu(reason));
  }
  std::vector<CUdeviceptr> operands;
  operands.reserve(inputs.data.size() + plan->output_shapes.size());
  for (const void* data : inputs.data) operands.push_back(cuda::address(data));
  for (size_t o = 0; o < plan->output_shapes.size(); ++o) {
    const Program& program = as_written().program();
    const DType type = output_type(program, first_output(program, o));
    operands.push_back(cuda::address(output(run, o, plan->output_shapes[o], type)));
  }
  if (!plan->has_elements) return;
  const cuda::Driver& driver = device_.driver();
  const cuda::ContextKernels& loaded = device_.kernels()->in(cuda::context_of(driver, stream, operands.back()));
  if (loaded.functions.empty()) return on_host(loaded.refusal);
  const cuda::Overlap overlap(run, device_, stream, inputs.data.size(), plan->extents, &operands);
  cuda::launch(driver, recipe_, loaded, *plan, operands, stream);
  overlap.copy_results();
}

PlanInUse<cuda::NodePlan> CudaFusedElementwise::find_plan(const PlanKey& key) {
  if (auto plan = plans_.find(key)) return plan;
  std::string error;
  auto plan = cuda::make_node_plan(as_written().program(), recipe_, key, &error);
  if (plan == nullptr) throw Error(error);
  return plans_.add(std::move(plan));
}

void CudaFusedElementwise::compute_on_host(SessionRun& run, ProgramKernel* kernel, const NodeInputs& inputs,
                                           CUstream stream, const std::string& warning) {
  warning_.warn_once(warning);
  cuda::compute_on_copies(device_, stream, run.host(), kernel, inputs,
                          [&](size_t o, const Shape& shape, DType type) { return output(run, o, shape, type); });
}

}  // namespace onnxfuse
