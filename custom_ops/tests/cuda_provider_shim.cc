// Lets an ONNX Runtime without CUDA run the library's CUDA operators: they are registered for the CPU provider, and
// get a stream of the stand-in driver.  All else is the library and the ONNX Runtime that users have.
//
// shim_open(path) names the library; tests/cuda/stand_in.py then registers the shim in its place.
#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <string>

#include "ort_abi.h"

namespace {

std::string g_library;
std::atomic<void*> g_stream{nullptr};
thread_local void* t_stream = nullptr;
const OrtApiBase* g_base = nullptr;
OrtApi g_api;

// A CUDA operator under the CPU provider's name.
struct MovedOp : OrtCustomOp {
  const OrtCustomOp* inner;
};

OrtStatus* add_op(OrtCustomOpDomain* domain, const OrtCustomOp* op) {
  if (std::strcmp(op->GetExecutionProviderType(op), "CUDAExecutionProvider") != 0) return nullptr;
  static std::deque<MovedOp> moved;
  MovedOp copy{*op, op};
  copy.GetName = [](const OrtCustomOp* self) {
    const OrtCustomOp* inner = static_cast<const MovedOp*>(self)->inner;
    return inner->GetName(inner);
  };
  copy.GetExecutionProviderType = [](const OrtCustomOp*) { return "CPUExecutionProvider"; };
  copy.CreateKernelV2 = [](const OrtCustomOp* self, const OrtApi*, const OrtKernelInfo* info, void** kernel) {
    const OrtCustomOp* inner = static_cast<const MovedOp*>(self)->inner;
    return inner->CreateKernelV2(inner, &g_api, info, kernel);
  };
  moved.push_back(copy);
  return g_base->GetApi(onnxfuse::kOrtApiVersion)->CustomOpDomain_Add(domain, &moved.back());
}

OrtStatus* get_stream(const OrtKernelContext*, void** out) {
  *out = t_stream != nullptr ? t_stream : g_stream.load();
  return nullptr;
}

}  // namespace

extern "C" void shim_open(const char* library) { g_library = library; }

// What KernelContext_GetGPUComputeStream gives from now on.
extern "C" void shim_set_stream(void* stream) { g_stream = stream; }

// The same for the calling thread alone.
extern "C" void shim_set_thread_stream(void* stream) { t_stream = stream; }

extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  g_base = base;
  g_api = *base->GetApi(onnxfuse::kOrtApiVersion);
  g_api.CustomOpDomain_Add = add_op;
  g_api.KernelContext_GetGPUComputeStream = get_stream;
  static const OrtApiBase patched{[](uint32_t) -> const OrtApi* { return &g_api; }, base->GetVersionString};
  void* library = dlopen(g_library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return g_api.CreateStatus(ORT_FAIL, dlerror());
  const auto register_ops = reinterpret_cast<OrtStatus* (*)(OrtSessionOptions*, const OrtApiBase*)>(
      dlsym(library, "RegisterCustomOps"));
  return register_ops(options, &patched);
}
