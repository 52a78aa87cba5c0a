// Lets an ONNX Runtime without CUDA run the library's CUDA operators: they are registered for the CPU provider, and
// get a stream of the stand-in driver and scratch memory of the shim's own.  All else is the library and the ONNX Runtime
// that users have.
//
// shim_open(path) names the library; tests/cuda/stand_in.py then registers the shim in its place.  After
// shim_keep_providers(1) the operators stay with the providers that they are made for.
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>

#include "ort/ort_abi.h"

namespace {

std::string g_library;
bool g_keep_providers = false;
std::atomic<void*> g_stream{nullptr};
thread_local void* t_stream = nullptr;
const OrtApiBase* g_base = nullptr;
OrtApi g_api;

// A CUDA operator under the CPU provider's name.
struct MovedOp : OrtCustomOp {
  const OrtCustomOp* inner;
};

OrtStatus* add_op(OrtCustomOpDomain* domain, const OrtCustomOp* op) {
  if (g_keep_providers) return g_base->GetApi(onnxfuse::kOrtApiVersion)->CustomOpDomain_Add(domain, op);
  if (std::strcmp(op->GetExecutionProviderType(op), "CUDAExecutionProvider") != 0) return nullptr;
  static std::deque<MovedOp> moved;
  MovedOp copy{*op, op};
  copy.GetName = [](const OrtCustomOp* self) {
    const OrtCustomOp* inner = static_cast<const MovedOp*>(self)->inner;
    return inner->GetName(inner);
  };
  copy.GetInputType = [](const OrtCustomOp* self, size_t index) {
    const OrtCustomOp* inner = static_cast<const MovedOp*>(self)->inner;
    return inner->GetInputType(inner, index);
  };
  copy.GetOutputType = copy.GetInputType;  // as of every operator of the library
  copy.GetExecutionProviderType = [](const OrtCustomOp*) { return "CPUExecutionProvider"; };
  copy.CreateKernelV2 = [](const OrtCustomOp* self, const OrtApi*, const OrtKernelInfo* info, void** kernel) {
    const OrtCustomOp* inner = static_cast<const MovedOp*>(self)->inner;
    return inner->CreateKernelV2(inner, &g_api, info, kernel);
  };
  copy.InferOutputShapeFn = [](const OrtCustomOp* self, OrtShapeInferContext* context) {
    const OrtCustomOp* inner = static_cast<const MovedOp*>(self)->inner;
    return inner->InferOutputShapeFn(inner, context);
  };
  moved.push_back(copy);
  return g_base->GetApi(onnxfuse::kOrtApiVersion)->CustomOpDomain_Add(domain, &moved.back());
}

OrtStatus* get_stream(const OrtKernelContext*, void** out) {
  *out = t_stream != nullptr ? t_stream : g_stream.load();
  return nullptr;
}

OrtStatus* get_providers(char*** names, int* count) {
  static char name[] = "CUDAExecutionProvider";
  static char* list[] = {name};
  *names = list;
  *count = 1;
  return nullptr;
}

// What was asked of the scratch memory, and how much of it, and how many allocators, were not given back.
std::mutex g_mutex;
std::string g_scratch;
int g_scratch_kept = 0;
int g_allocators = 0;
bool g_out_of_memory = false;

OrtStatus* get_allocator(const OrtKernelContext*, const OrtMemoryInfo*, OrtAllocator** out) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  ++g_allocators;
  *out = new OrtAllocator{onnxfuse::kOrtApiVersion, nullptr, [](OrtAllocator*, void* memory) {
                            const std::lock_guard<std::mutex> lock(g_mutex);
                            --g_scratch_kept;
                            std::free(memory);
                          }};
  return nullptr;
}

void release_allocator(OrtAllocator* allocator) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  --g_allocators;
  delete allocator;
}

OrtStatus* get_scratch(const OrtKernelContext*, const OrtMemoryInfo*, size_t bytes, void** out) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  if (g_out_of_memory) return g_api.CreateStatus(ORT_FAIL, "the shim has no memory");
  g_scratch += std::to_string(bytes) + " ";
  ++g_scratch_kept;
  *out = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return nullptr;
}

}  // namespace

extern "C" void shim_open(const char* library) { g_library = library; }

extern "C" void shim_keep_providers(int on) { g_keep_providers = on != 0; }

// What KernelContext_GetGPUComputeStream gives from now on.
extern "C" void shim_set_stream(void* stream) { g_stream = stream; }

// The same for the calling thread alone.
extern "C" void shim_set_thread_stream(void* stream) { t_stream = stream; }

// The bytes of each scratch memory since the last time, then how many and how many allocators are not given back.
extern "C" const char* shim_take_scratch() {
  static std::string taken;
  const std::lock_guard<std::mutex> lock(g_mutex);
  taken = g_scratch + "| " + std::to_string(g_scratch_kept) + " " + std::to_string(g_allocators);
  g_scratch.clear();
  return taken.c_str();
}

extern "C" void shim_out_of_memory(int on) { g_out_of_memory = on != 0; }

extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  g_base = base;
  g_api = *base->GetApi(onnxfuse::kOrtApiVersion);
  g_api.CustomOpDomain_Add = add_op;
  g_api.KernelContext_GetGPUComputeStream = get_stream;
  g_api.GetAvailableProviders = get_providers;
  g_api.ReleaseAvailableProviders = [](char**, int) -> OrtStatus* { return nullptr; };
  g_api.KernelContext_GetAllocator = get_allocator;
  g_api.ReleaseAllocator = release_allocator;
  g_api.KernelContext_GetScratchBuffer = get_scratch;
  static const OrtApiBase patched{
      [](uint32_t version) -> const OrtApi* { return version == onnxfuse::kOrtApiVersion ? &g_api : nullptr; },
      base->GetVersionString};
  void* library = dlopen(g_library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return g_api.CreateStatus(ORT_FAIL, dlerror());
  const auto register_ops = reinterpret_cast<OrtStatus* (*)(OrtSessionOptions*, const OrtApiBase*)>(
      dlsym(library, "RegisterCustomOps"));
  return register_ops(options, &patched);
}
