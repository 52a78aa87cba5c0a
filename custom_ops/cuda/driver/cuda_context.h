// The CUDA context of a run: that of ONNX Runtime's stream, which is its device's primary one.
#ifndef ONNXFUSE_CUDA_CONTEXT_H_
#define ONNXFUSE_CUDA_CONTEXT_H_

#include "cuda/driver/cuda_driver.h"

namespace onnxfuse::cuda {

// The context of `stream`, else the thread's current one, else the primary one of the device that has `memory`.
CUcontext context_of(const Driver& driver, CUstream stream, CUdeviceptr memory);

// Makes a context current on the calling thread while it lives.  Costs one call where it is current already.
class ScopedContext {
 public:
  ScopedContext(const Driver& driver, CUcontext context);
  ~ScopedContext();
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;

 private:
  const Driver& driver_;
  bool pushed_ = false;
};

}  // namespace onnxfuse::cuda

#endif  // ONNXFUSE_CUDA_CONTEXT_H_
