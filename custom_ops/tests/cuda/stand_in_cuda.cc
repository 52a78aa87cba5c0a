// A stand-in for the CUDA driver library, for machines without a GPU: it exports the driver's functions that the
// library uses, and records every call.  Device memory is the host's.  A module is a shared object of this machine,
// whose functions take the place of kernels; they run within cuLaunchKernel.
//
//   A cubin: the bytes of such a shared object, with the ELF machine of NVIDIA GPUs and the architecture in its flags.
//   PTX: text with a line "// emulated by <path of the shared object>".
//   A kernel: const char* <name>_emulated(const EmulatedLaunch*), which returns what went wrong, or null; and size_t
//   <name>_parameters[], the offset and size of each parameter, ended by a size of 0.
//
// The functions stand_in_… control it; tests/cuda/stand_in.py calls them.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "cuda/driver/cuda_driver.h"
#include "tests/cuda/emulated_launch.h"

using namespace onnxfuse::cuda;

struct CUctx_st {
  int device;
};
struct CUmod_st {
  void* library;
  CUcontext context;
};
struct CUfunc_st {
  std::string name;
  CUcontext context;
  const char* (*run)(const EmulatedLaunch*);
  const size_t* parameters;
};
struct CUstream_st {
  CUcontext context;
  int number;
};

namespace {

constexpr CUresult CUDA_ERROR_NO_DEVICE = 100;
constexpr CUresult CUDA_ERROR_INVALID_CONTEXT = 201;
constexpr CUresult CUDA_ERROR_INVALID_HANDLE = 400;
constexpr CUresult CUDA_ERROR_LAUNCH_FAILED = 719;
constexpr CUresult CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900;

struct DeviceState {
  int major;
  int minor;
  int multiprocessors;
  CUctx_st context;
};

struct Failure {
  int after;  // calls that still succeed
  CUresult result;
};

std::mutex g_mutex;
std::deque<DeviceState> g_devices;
std::deque<CUstream_st> g_streams;
std::map<std::string, Failure> g_failures;
std::string g_log;
std::atomic<bool> g_capturing{false};
int g_max_threads = 1024;
thread_local std::vector<CUcontext> g_stack;

// A line of JSON about one call.
class Record {
 public:
  explicit Record(const char* function) { text_ << "{\"call\": \"" << function << '"'; }
  Record& add(const char* key, const std::string& value) {
    text_ << ", \"" << key << "\": \"" << value << '"';
    return *this;
  }
  Record& add(const char* key, long long value) {
    text_ << ", \"" << key << "\": " << value;
    return *this;
  }
  ~Record() {
    const std::lock_guard<std::mutex> lock(g_mutex);
    g_log += text_.str() + "}\n";
  }

 private:
  std::ostringstream text_;
};

// What the function must return because a test asked for it, or because a stream is being captured.
CUresult verdict(const char* function, bool allowed_in_capture) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  const auto failure = g_failures.find(function);
  if (failure != g_failures.end()) {
    if (failure->second.after-- == 0) {
      const CUresult result = failure->second.result;
      g_failures.erase(failure);
      return result;
    }
  }
  return g_capturing && !allowed_in_capture ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

#define BEGIN(function, allowed_in_capture) \
  Record record(#function);                 \
  if (const CUresult result = verdict(#function, allowed_in_capture)) return result

CUcontext current() { return g_stack.empty() ? nullptr : g_stack.back(); }

std::string hex(const unsigned char* bytes, size_t count) {
  std::string text;
  char digits[3];
  for (size_t i = 0; i < count; ++i) {
    std::snprintf(digits, sizeof(digits), "%02x", bytes[i]);
    text += digits;
  }
  return text;
}

// Opens the shared object in a cubin.
void* open_cubin(const unsigned char* image) {
  uint64_t sections = 0;
  uint16_t count = 0;
  std::memcpy(&sections, image + 40, sizeof(sections));
  std::memcpy(&count, image + 60, sizeof(count));
  const size_t bytes = sections + size_t{64} * count;  // the section headers are the end of what the linker writes
  std::string object(reinterpret_cast<const char*>(image), bytes);
#if defined(__aarch64__)
  const uint16_t machine = 183;
#else
  const uint16_t machine = 62;
#endif
  std::memcpy(&object[18], &machine, sizeof(machine));
  std::memset(&object[48], 0, sizeof(uint32_t));
  const int file = memfd_create("cubin", 0);
  if (file < 0 || write(file, object.data(), object.size()) != static_cast<ssize_t>(object.size())) return nullptr;
  // The file stays open, so that the next has another number: dlopen knows libraries by their paths.
  return dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
}

int after(const std::string& text, const char* word) {
  const size_t at = text.find(word);
  return at == std::string::npos ? 0 : std::atoi(text.c_str() + at + std::strlen(word));
}

}  // namespace

extern "C" {

void stand_in_add_device(int major, int minor, int multiprocessors) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  g_devices.push_back({major, minor, multiprocessors, {static_cast<int>(g_devices.size())}});
}

// A new stream of the device's primary context.
void* stand_in_stream(int device) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  g_streams.push_back({&g_devices[static_cast<size_t>(device)].context, static_cast<int>(g_streams.size())});
  return &g_streams.back();
}

// Makes the device's primary context the only current one of the calling thread; none if negative.
void stand_in_set_current(int device) {
  g_stack.clear();
  if (device >= 0) g_stack.push_back(&g_devices[static_cast<size_t>(device)].context);
}

// Lets `count` calls of the function pass and fails the next.
void stand_in_fail(const char* function, int count, int result) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  g_failures[function] = {count, result};
}

// As if the calling code captured a graph: what is not allowed then fails.
void stand_in_capture(int on) { g_capturing = on != 0; }

void stand_in_max_threads(int threads) { g_max_threads = threads; }

// The calls since the last time, one JSON object a line.
const char* stand_in_take_log() {
  static std::string taken;
  const std::lock_guard<std::mutex> lock(g_mutex);
  taken.swap(g_log);
  g_log.clear();
  return taken.c_str();
}

CUresult cuInit(unsigned) {
  BEGIN(cuInit, false);
  return g_devices.empty() ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult result, const char** name) {
  switch (result) {
    case CUDA_ERROR_INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case CUDA_ERROR_NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; break;
    case CUDA_ERROR_INVALID_IMAGE: *name = "CUDA_ERROR_INVALID_IMAGE"; break;
    case CUDA_ERROR_NO_BINARY_FOR_GPU: *name = "CUDA_ERROR_NO_BINARY_FOR_GPU"; break;
    case CUDA_ERROR_INVALID_PTX: *name = "CUDA_ERROR_INVALID_PTX"; break;
    case CUDA_ERROR_LAUNCH_FAILED: *name = "CUDA_ERROR_LAUNCH_FAILED"; break;
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: *name = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"; break;
    default: *name = nullptr; return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult result, const char** text) {
  *text = result == CUDA_ERROR_LAUNCH_FAILED ? "unspecified launch failure" : "the stand-in says so";
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  BEGIN(cuDeviceGetCount, true);
  *count = static_cast<int>(g_devices.size());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  BEGIN(cuDeviceGet, true);
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  BEGIN(cuDeviceGetAttribute, true);
  const DeviceState& state = g_devices[static_cast<size_t>(device)];
  *value = attribute == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT       ? state.multiprocessors
           : attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? state.major
                                                                       : state.minor;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  BEGIN(cuDevicePrimaryCtxRetain, false);
  *context = &g_devices[static_cast<size_t>(device)].context;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  BEGIN(cuCtxGetCurrent, true);
  *context = current();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  BEGIN(cuCtxGetDevice, true);
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  *device = current()->device;
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  BEGIN(cuCtxPushCurrent, true);
  g_stack.push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  BEGIN(cuCtxPopCurrent, true);
  if (g_stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = g_stack.back();
  g_stack.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute, CUdeviceptr) {
  BEGIN(cuPointerGetAttribute, true);
  *static_cast<int*>(value) = 0;
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned count, CUjit_option* options, void** values) {
  BEGIN(cuModuleLoadDataEx, false);
  if (current() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const int device = current()->device;
  const int number = g_devices[static_cast<size_t>(device)].major * 10 + g_devices[static_cast<size_t>(device)].minor;
  const auto* bytes = static_cast<const unsigned char*>(image);
  const bool is_cubin = bytes[0] == 0x7f;
  record.add("device", device).add("kind", is_cubin ? "cubin" : "ptx");
  void* library = nullptr;
  if (is_cubin) {
    const int built_for = bytes[49];
    if (built_for / 10 != number / 10 || built_for > number) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    library = open_cubin(bytes);
  } else {
    const std::string text(static_cast<const char*>(image));
    if (after(text, ".target sm_") > number) {
      if (count == 2 && options[0] == CU_JIT_ERROR_LOG_BUFFER && options[1] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) {
        std::snprintf(static_cast<char*>(values[0]), reinterpret_cast<size_t>(values[1]),
                      "ptxas fatal: the target is newer than the device\nmore\n");
      }
      return CUDA_ERROR_INVALID_PTX;
    }
    const char line[] = "// emulated by ";
    const size_t at = text.find(line);
    if (at == std::string::npos) return CUDA_ERROR_INVALID_PTX;
    const size_t begin = at + sizeof(line) - 1;
    library = dlopen(text.substr(begin, text.find('\n', begin) - begin).c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) return CUDA_ERROR_INVALID_IMAGE;
  *module = new CUmod_st{library, current()};
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
  BEGIN(cuModuleUnload, false);
  if (current() != module->context) return CUDA_ERROR_INVALID_CONTEXT;
  record.add("device", module->context->device);
  dlclose(module->library);
  delete module;
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  BEGIN(cuModuleGetFunction, false);
  record.add("name", name);
  void* run = dlsym(module->library, (std::string(name) + "_emulated").c_str());
  if (run == nullptr) return CUDA_ERROR_NOT_FOUND;
  const void* parameters = dlsym(module->library, (std::string(name) + "_parameters").c_str());
  static std::deque<CUfunc_st> functions;
  const std::lock_guard<std::mutex> lock(g_mutex);
  functions.push_back({name, module->context, reinterpret_cast<const char* (*)(const EmulatedLaunch*)>(run),
                       static_cast<const size_t*>(parameters)});
  *function = &functions.back();
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute, CUfunction) {
  BEGIN(cuFuncGetAttribute, false);
  *value = g_max_threads;
  return CUDA_SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset, size_t* bytes) {
  BEGIN(cuFuncGetParamInfo, false);
  for (size_t p = 0; function->parameters[2 * p + 1] != 0; ++p) {
    if (p != index) continue;
    *offset = function->parameters[2 * p];
    *bytes = function->parameters[2 * p + 1];
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void** parameters,
                        void** extra) {
  BEGIN(cuLaunchKernel, true);
  if (function->context != current()) return CUDA_ERROR_INVALID_CONTEXT;
  if (stream != nullptr && stream->context != current()) return CUDA_ERROR_INVALID_HANDLE;
  if (grid_x == 0 || grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1 || shared_bytes != 0 ||
      parameters != nullptr || extra[0] != CU_LAUNCH_PARAM_BUFFER_POINTER || extra[2] != CU_LAUNCH_PARAM_BUFFER_SIZE ||
      extra[4] != CU_LAUNCH_PARAM_END) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto* block = static_cast<const unsigned char*>(extra[1]);
  const size_t bytes = *static_cast<const size_t*>(extra[3]);
  record.add("kernel", function->name).add("grid", grid_x).add("block", block_x).add("device", current()->device);
  record.add("stream", stream == nullptr ? -1 : stream->number).add("parameters", hex(block, bytes));
  const EmulatedLaunch launch{block, bytes, grid_x, block_x};
  const char* problem = function->run(&launch);
  if (problem == nullptr) return CUDA_SUCCESS;
  record.add("problem", problem);
  return CUDA_ERROR_LAUNCH_FAILED;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  BEGIN(cuStreamGetCtx, true);
  *context = stream->context;
  return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream) {
  BEGIN(cuStreamSynchronize, false);
  return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream) {
  BEGIN(cuMemcpyDtoHAsync, false);
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream) {
  BEGIN(cuMemcpyDtoDAsync, true);
  record.add("bytes", static_cast<long long>(bytes));
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream) {
  BEGIN(cuMemcpyHtoDAsync, false);
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return CUDA_SUCCESS;
}

}  // extern "C"
