#include "cuda/launch/cuda_workspace.h"

#include "ort/ort_call.h"

namespace onnxfuse::cuda {

Workspace::Workspace(const SessionRun& run, size_t bytes) : api_(run.api()) {
  if (bytes == 0) return;
  const OrtKernelContext* const context = run.context();
  const OrtValue* input = nullptr;
  const OrtMemoryInfo* where = nullptr;
  onnxfuse::check(api_->KernelContext_GetInput(context, 0, &input));
  onnxfuse::check(api_->GetTensorMemoryInfo(input, &where));
  onnxfuse::check(api_->KernelContext_GetAllocator(context, where, &allocator_));
  if (OrtStatus* status = api_->KernelContext_GetScratchBuffer(context, where, bytes, &memory_)) {
    api_->ReleaseAllocator(allocator_);
    throw OrtFailure(status);
  }
}

Workspace::~Workspace() {
  if (allocator_ == nullptr) return;
  allocator_->Free(allocator_, memory_);
  api_->ReleaseAllocator(allocator_);
}

}  // namespace onnxfuse::cuda
