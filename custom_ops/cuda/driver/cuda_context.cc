#include "cuda/driver/cuda_context.h"

#include <map>
#include <mutex>

namespace onnxfuse::cuda {
namespace {

// The runtime API, through which ORT uses the device, keeps the primary context for the life of the process; so is this
// reference kept.
CUcontext primary_context(const Driver& driver, int ordinal) {
  static std::mutex mutex;
  static std::map<int, CUcontext>& retained = *new std::map<int, CUcontext>;
  const std::lock_guard<std::mutex> lock(mutex);
  CUcontext& context = retained[ordinal];
  if (context != nullptr) return context;
  CUdevice device = 0;
  driver.check(driver.cuDeviceGet(&device, ordinal), "cuDeviceGet");
  driver.check(driver.cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
  return context;
}

}  // namespace

CUcontext context_of(const Driver& driver, CUstream stream, CUdeviceptr memory) {
  CUcontext context = nullptr;
  const bool known = stream != nullptr && driver.cuStreamGetCtx(stream, &context) == CUDA_SUCCESS;
  if (known && context != nullptr) return context;
  driver.check(driver.cuCtxGetCurrent(&context), "cuCtxGetCurrent");
  if (context != nullptr) return context;
  int ordinal = 0;
  driver.check(driver.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory),
               "cuPointerGetAttribute");
  return primary_context(driver, ordinal);
}

ScopedContext::ScopedContext(const Driver& driver, CUcontext context) : driver_(driver) {
  CUcontext current = nullptr;
  driver.check(driver.cuCtxGetCurrent(&current), "cuCtxGetCurrent");
  if (current == context) return;
  driver.check(driver.cuCtxPushCurrent(context), "cuCtxPushCurrent");
  pushed_ = true;
}

ScopedContext::~ScopedContext() {
  CUcontext popped = nullptr;
  if (pushed_) driver_.cuCtxPopCurrent(&popped);
}

}  // namespace onnxfuse::cuda
