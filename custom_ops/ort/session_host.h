// The session that runs a node, as the host of its kernels on the CPU.
#ifndef ONNXFUSE_SESSION_HOST_H_
#define ONNXFUSE_SESSION_HOST_H_

#include "ort/ort_abi.h"
#include "runtime/host.h"

namespace onnxfuse {

// What a session's provider allocates tensors with, as long as this lives.
class SessionAllocator {
 public:
  // None if `info` is null.
  SessionAllocator(const OrtApi* api, const OrtKernelInfo* info);
  ~SessionAllocator();
  SessionAllocator(const SessionAllocator&) = delete;
  SessionAllocator& operator=(const SessionAllocator&) = delete;

  OrtAllocator* get() const { return allocator_; }  // null if there is none

 private:
  const OrtApi* api_;
  OrtAllocator* allocator_ = nullptr;
};

// The session's threads, and memory of `allocator`; or of the heap if that is null.
class SessionHost : public Host {
 public:
  SessionHost(const OrtApi* api, const OrtKernelContext* context, OrtAllocator* allocator);
  SessionHost(const SessionHost&) = delete;
  SessionHost& operator=(const SessionHost&) = delete;

 private:
  const OrtApi* api_;
  const OrtKernelContext* kernel_context_;
  OrtAllocator* allocator_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_SESSION_HOST_H_
