#include "ort/session_host.h"

#include <cstdlib>

#include "figures/plan.h"
#include "ort/ort_call.h"

namespace onnxfuse {
SessionAllocator::SessionAllocator(const OrtApi* api, const OrtKernelInfo* info) : api_(api) {
  if (info == nullptr) return;
  if (OrtStatus* status = api->KernelInfoGetAllocator(info, OrtMemTypeDefault, &allocator_)) api->ReleaseStatus(status);
}

SessionAllocator::~SessionAllocator() {
  if (allocator_ != nullptr) api_->ReleaseAllocator(allocator_);
}

SessionHost::SessionHost(const OrtApi* api, const OrtKernelContext* kernel_context, OrtAllocator* allocator)
    : api_(api), kernel_context_(kernel_context), allocator_(allocator) {
  context = this;
  lead_nanoseconds = kLeadNanoseconds;
  run_in_parallel = [](void* self, void (*function)(void*, size_t), size_t total, void* data) {
    const auto& host = *static_cast<const SessionHost*>(self);
    check(host.api_->KernelContext_ParallelFor(host.kernel_context_, function, total, 0, data));
  };
  allocate = [](void* self, size_t bytes) {
    OrtAllocator* const allocator = static_cast<const SessionHost*>(self)->allocator_;
    return allocator == nullptr ? std::malloc(bytes) : allocator->Alloc(allocator, bytes);
  };
  release = [](void* self, void* memory) {
    OrtAllocator* const allocator = static_cast<const SessionHost*>(self)->allocator_;
    allocator == nullptr ? std::free(memory) : allocator->Free(allocator, memory);
  };
}

}  // namespace onnxfuse
