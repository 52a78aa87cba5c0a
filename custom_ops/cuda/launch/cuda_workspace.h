// Device memory of ONNX Runtime's for what the kernels of one run pass on to each other.
#ifndef ONNXFUSE_CUDA_WORKSPACE_H_
#define ONNXFUSE_CUDA_WORKSPACE_H_

#include <cstddef>

#include "cuda/driver/cuda_driver.h"
#include "ort/session_node.h"

namespace onnxfuse::cuda {

// Allocated for the run's stream, and given back in the order of that stream: it may be destroyed as soon as the kernels
// are launched.  ORT's arena asks CUDA for memory only when it grows, which it does not in a run like one before; so a
// CUDA graph can capture it, as it captures ORT's own kernels with their scratch memory.
class Workspace {
 public:
  // Nothing is allocated for 0 bytes.  Throws OrtFailure.
  Workspace(const SessionRun& run, size_t bytes);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  CUdeviceptr address() const { return reinterpret_cast<CUdeviceptr>(memory_); }

 private:
  const OrtApi* api_;
  OrtAllocator* allocator_ = nullptr;
  void* memory_ = nullptr;
};

}  // namespace onnxfuse::cuda

#endif  // ONNXFUSE_CUDA_WORKSPACE_H_
