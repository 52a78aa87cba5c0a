#include "cuda_fused_elementwise.h"

#include <cstdio>
#include <utility>

#include "cuda_context.h"
#include "ort_call.h"

namespace onnxfuse {
namespace {

using cuda::CUcontext;
using cuda::CUdeviceptr;
using cuda::CUstream;

// Runs `body` with the errors of the CUDA layer, which does not know ORT, turned into Errors.  ORT_FAIL is what ORT's
// own kernels give; on ORT_EP_FAIL its Python package would go on, on the CPU alone.
template <class Body>
void translated(const Body& body) {
  try {
    body();
  } catch (const cuda::DriverError& error) {
    throw Error(error.what(), ORT_FAIL);
  } catch (const cuda::InvalidNode& error) {
    throw Error(error.what(), ORT_INVALID_GRAPH);
  }
}

bool read_attribute(const OrtApi* api, const OrtKernelInfo* info, const std::string& name, std::string* bytes) {
  size_t size = 0;
  if (OrtStatus* status = api->KernelInfoGetAttribute_string(info, name.c_str(), nullptr, &size)) {
    api->ReleaseStatus(status);
    return false;
  }
  *bytes = read_string([&](char* out, size_t* capacity) {
    return api->KernelInfoGetAttribute_string(info, name.c_str(), out, capacity);
  });
  return true;
}

CUdeviceptr address(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

size_t bytes_of(const Shape& shape, DType type) {
  int64_t count = 0;
  if (!element_count(shape, &count)) throw Error("shape " + to_string(shape) + " has too many elements");
  return static_cast<size_t>(count) * storage_size(type);
}

}  // namespace

CudaFusedElementwise::CudaFusedElementwise(const OrtApi* api, const OrtKernelInfo* info) : FusedNode(api, info) {
  std::string error;
  driver_ = cuda::open_driver(&error);
  if (driver_ == nullptr) throw Error(error, ORT_FAIL);
  if (OrtStatus* status = api->KernelInfo_GetLogger(info, &logger_)) api->ReleaseStatus(status);
  translated([&] { read_kernels(info); });
}

void CudaFusedElementwise::read_kernels(const OrtKernelInfo* info) {
  std::string text;
  if (!read_attribute(api(), info, "cuda_recipe", &text)) return;
  std::string error;
  const Program& program = as_written().program();
  if (!cuda::parse_recipe(text, program.input_count, program.outputs.size(), &recipe_, &error)) {
    throw Error("the cuda_recipe attribute is not valid: " + error);
  }
  kernels_ = std::make_unique<cuda::NodeKernels>(*driver_, recipe_, [&](const std::string& name, std::string* bytes) {
    return read_attribute(api(), info, name, bytes);
  });
  // Modules are loaded here if ORT has made its device's context current, which it does; the first run may be captured
  // as a CUDA graph, when nothing can be loaded.
  CUcontext context = nullptr;
  driver_->check(driver_->cuCtxGetCurrent(&context), "cuCtxGetCurrent");
  if (context == nullptr) return;
  const cuda::ContextKernels& loaded = kernels_->in(context);
  if (loaded.functions.empty()) warn(loaded.refusal);
}

void CudaFusedElementwise::compute(OrtKernelContext* context) {
  translated([&] { launch_or_compute(context); });
}

void CudaFusedElementwise::launch_or_compute(OrtKernelContext* context) {
  const NodeInputs inputs = read_inputs(context);
  ProgramKernel& kernel = kernel_for(inputs.types);
  void* handle = nullptr;
  check(api()->KernelContext_GetGPUComputeStream(context, &handle));
  const auto stream = static_cast<CUstream>(handle);
  const auto on_host = [&](const std::string& reason) { compute_on_host(context, &kernel, inputs, stream, reason); };
  if (kernels_ == nullptr) return on_host("it carries no CUDA kernels");
  if (&kernel != &as_written()) return on_host("ONNX Runtime has widened its float16 tensors");

  const auto plan = find_plan(inputs.key);
  if (plan->writes_without_elements) return on_host("an output has elements although an input has none");
  std::vector<CUdeviceptr> operands;
  operands.reserve(inputs.data.size() + plan->output_shapes.size());
  for (const void* data : inputs.data) operands.push_back(address(data));
  for (size_t o = 0; o < plan->output_shapes.size(); ++o) {
    operands.push_back(address(output(context, o, plan->output_shapes[o])));
  }
  if (plan->elements == 0) return;
  const cuda::ContextKernels& loaded = kernels_->in(cuda::context_of(*driver_, stream, operands.back()));
  if (loaded.functions.empty()) return on_host(loaded.refusal);
  cuda::launch(*driver_, recipe_, loaded, *plan, operands, stream);
}

std::shared_ptr<const cuda::LaunchPlan> CudaFusedElementwise::find_plan(const PlanKey& key) {
  if (auto plan = plans_.find(key)) return plan;
  std::string error;
  auto plan = cuda::make_launch_plan(as_written().program(), recipe_, key, &error);
  if (plan == nullptr) throw Error(error);
  plans_.add(plan);
  return plan;
}

void CudaFusedElementwise::compute_on_host(OrtKernelContext* context, ProgramKernel* kernel, const NodeInputs& inputs,
                                           CUstream stream, const std::string& reason) {
  warn(reason);
  struct Result {
    CUdeviceptr device;
    std::unique_ptr<Scratch> host;
    size_t bytes;
  };
  const auto copy = [&](CUdeviceptr device, char* host, size_t bytes, bool to_host) {
    if (bytes == 0) return;
    const cuda::ScopedContext current(*driver_, cuda::context_of(*driver_, stream, device));
    if (to_host) {
      driver_->check(driver_->cuMemcpyDtoHAsync(host, device, bytes, stream), "cuMemcpyDtoHAsync");
    } else {
      driver_->check(driver_->cuMemcpyHtoDAsync(device, host, bytes, stream), "cuMemcpyHtoDAsync");
    }
    driver_->check(driver_->cuStreamSynchronize(stream), "cuStreamSynchronize");
  };
  const Program& program = kernel->program();
  std::vector<std::unique_ptr<Scratch>> memory;
  std::vector<const void*> data;
  for (size_t i = 0; i < inputs.data.size(); ++i) {
    const size_t bytes = bytes_of(inputs.key.shapes[i], program.values[i].type);
    memory.push_back(std::make_unique<Scratch>(bytes));
    data.push_back(memory.back()->data());
    copy(address(inputs.data[i]), memory.back()->data(), bytes, true);
  }
  std::vector<Result> results;
  kernel->compute(context, inputs.key, std::move(data), [&](size_t o, const Shape& shape) -> void* {
    const size_t bytes = bytes_of(shape, program.values[program.outputs[o]].type);
    results.push_back({address(output(context, o, shape)), std::make_unique<Scratch>(bytes), bytes});
    return results.back().host->data();
  });
  for (const Result& result : results) copy(result.device, result.host->data(), result.bytes, false);
}

void CudaFusedElementwise::warn(const std::string& reason) {
  if (warned_.exchange(true)) return;
  const std::string message = place(name()) + "runs on the CPU, with its tensors copied there and back: " + reason;
  OrtStatus* status = nullptr;
  if (logger_ != nullptr) {
    status = api()->Logger_LogMessage(logger_, ORT_LOGGING_LEVEL_WARNING, message.c_str(), "cuda_fused_elementwise.cc",
                                      __LINE__, __func__);
    if (status == nullptr) return;
    api()->ReleaseStatus(status);
  }
  std::fprintf(stderr, "%s\n", message.c_str());
}

}  // namespace onnxfuse
