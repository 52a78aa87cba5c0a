#include "cuda/launch/cuda_node.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "cuda/driver/cuda_context.h"
#include "ort/ort_call.h"

namespace onnxfuse::cuda {

std::string on_the_cpu(const std::string& reason) {
  return "runs on the CPU, with its tensors copied there and back: " + reason;
}

std::string refused(const std::string& reason) {
  const char* const required = std::getenv("ONNXFUSE_REQUIRE_GPU");
  if (required != nullptr && std::strcmp(required, "1") == 0) throw Error("cannot run on the GPU: " + reason, ErrorCode::Fail);
  return on_the_cpu(reason);
}

CUdeviceptr address(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

CUstream stream_of(const SessionRun& run) {
  void* stream = nullptr;
  onnxfuse::check(run.api()->KernelContext_GetGPUComputeStream(run.context(), &stream));
  return static_cast<CUstream>(stream);
}

NodeDevice::NodeDevice() {
  std::string error;
  driver_ = open_driver(&error);
  if (driver_ == nullptr) throw Error(error, ErrorCode::Fail);
}

std::string NodeDevice::load(const AttributeSource& attributes, std::vector<KernelSignature> kernels) {
  kernels_ = std::make_unique<NodeKernels>(
      *driver_, std::move(kernels),
      [&](const std::string& name, std::string* bytes) { return attributes.text(name.c_str(), bytes); });
  CUcontext context = nullptr;
  driver_->check(driver_->cuCtxGetCurrent(&context), "cuCtxGetCurrent");
  if (context == nullptr) return "";
  const ContextKernels& loaded = kernels_->in(context);
  return loaded.functions.empty() ? loaded.refusal : "";
}

void NodeDevice::copy_to_host(void* host, CUdeviceptr device, size_t bytes, CUstream stream) const {
  if (bytes == 0) return;
  const ScopedContext current(*driver_, context_of(*driver_, stream, device));
  driver_->check(driver_->cuMemcpyDtoHAsync(host, device, bytes, stream), "cuMemcpyDtoHAsync");
  driver_->check(driver_->cuStreamSynchronize(stream), "cuStreamSynchronize");
}

void NodeDevice::copy_to_device(CUdeviceptr device, const void* host, size_t bytes, CUstream stream) const {
  if (bytes == 0) return;
  const ScopedContext current(*driver_, context_of(*driver_, stream, device));
  driver_->check(driver_->cuMemcpyHtoDAsync(device, host, bytes, stream), "cuMemcpyHtoDAsync");
  driver_->check(driver_->cuStreamSynchronize(stream), "cuStreamSynchronize");
}

void NodeDevice::copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) const {
  const ScopedContext current(*driver_, context_of(*driver_, stream, to));
  driver_->check(driver_->cuMemcpyDtoDAsync(to, from, bytes, stream), "cuMemcpyDtoDAsync");
}

const void* HostCopies::of_input(CUdeviceptr tensor, size_t bytes) {
  memory_.emplace_back(host_, bytes);
  device_.copy_to_host(memory_.back().data(), tensor, bytes, stream_);
  return memory_.back().data();
}

void* HostCopies::for_output(CUdeviceptr tensor, size_t bytes) {
  memory_.emplace_back(host_, bytes);
  results_.push_back({tensor, bytes, memory_.back().data()});
  return memory_.back().data();
}

void HostCopies::finish() const {
  for (const Result& result : results_) device_.copy_to_device(result.tensor, result.host, result.bytes, stream_);
}

}  // namespace onnxfuse::cuda
