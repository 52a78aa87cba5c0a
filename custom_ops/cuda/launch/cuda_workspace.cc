#include "cuda/launch/cuda_workspace.h"

#include "ort/ort_call.h"

namespace onnxfuse::cuda {

Workspace::Workspace(const OrtApi* api, const OrtKernelContext* context, size_t bytes) : api_(api) {
  if (bytes == 0) return;
  const OrtValue* input = nullptr;
  const OrtMemoryInfo* where = nullptr;
  onnxfuse::check(api->KernelContext_GetInput(context, 0, &input));
  onnxfuse::check(api->GetTensorMemoryInfo(input, &where));
  onnxfuse::check(api->KernelContext_GetAllocator(context, where, &allocator_));
  if (OrtStatus* status = api->KernelContext_GetScratchBuffer(context, where, bytes, &memory_)) {
    api->ReleaseAllocator(allocator_);
    throw OrtFailure(status);
  }
}

Workspace::~Workspace() {
  if (allocator_ == nullptr) return;
  allocator_->Free(allocator_, memory_);
  api_->ReleaseAllocator(allocator_);
}

}  // namespace onnxfuse::cuda
