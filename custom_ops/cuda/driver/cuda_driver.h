// The CUDA driver, opened at run time: the library is built without CUDA and runs where there is none.
//
// Types, functions and enumerators are those of the driver's C ABI, which is stable.
#ifndef ONNXFUSE_CUDA_DRIVER_H_
#define ONNXFUSE_CUDA_DRIVER_H_

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

struct CUctx_st;
struct CUmod_st;
struct CUfunc_st;
struct CUstream_st;

namespace onnxfuse::cuda {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = uint64_t;
using CUcontext = CUctx_st*;
using CUmodule = CUmod_st*;
using CUfunction = CUfunc_st*;
using CUstream = CUstream_st*;

// Results that the library tells apart.
inline constexpr CUresult CUDA_SUCCESS = 0;
inline constexpr CUresult CUDA_ERROR_INVALID_VALUE = 1;
inline constexpr CUresult CUDA_ERROR_INVALID_IMAGE = 200;
inline constexpr CUresult CUDA_ERROR_NO_BINARY_FOR_GPU = 209;
inline constexpr CUresult CUDA_ERROR_INVALID_PTX = 218;
inline constexpr CUresult CUDA_ERROR_JIT_COMPILER_NOT_FOUND = 221;
inline constexpr CUresult CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222;
inline constexpr CUresult CUDA_ERROR_JIT_COMPILATION_DISABLED = 223;
inline constexpr CUresult CUDA_ERROR_INVALID_SOURCE = 300;
inline constexpr CUresult CUDA_ERROR_NOT_FOUND = 500;

enum CUdevice_attribute : int {
  CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
};
enum CUfunction_attribute : int { CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 0 };
enum CUpointer_attribute : int { CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9 };
enum CUjit_option : int { CU_JIT_ERROR_LOG_BUFFER = 5, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6 };

// What cuLaunchKernel's `extra` is made of, to pass all parameters as one block of memory.
inline void* const CU_LAUNCH_PARAM_END = nullptr;
inline void* const CU_LAUNCH_PARAM_BUFFER_POINTER = reinterpret_cast<void*>(uintptr_t{1});
inline void* const CU_LAUNCH_PARAM_BUFFER_SIZE = reinterpret_cast<void*>(uintptr_t{2});

// FUNCTION(name, suffix of the version in use, parameters); OPTIONAL(…) for what older drivers lack.
#define ONNXFUSE_CUDA_FUNCTIONS(FUNCTION, OPTIONAL)                                                               \
  FUNCTION(cuInit, , (unsigned flags))                                                                            \
  FUNCTION(cuGetErrorName, , (CUresult result, const char** name))                                                \
  FUNCTION(cuGetErrorString, , (CUresult result, const char** text))                                              \
  FUNCTION(cuDeviceGetCount, , (int* count))                                                                      \
  FUNCTION(cuDeviceGet, , (CUdevice* device, int ordinal))                                                        \
  FUNCTION(cuDeviceGetAttribute, , (int* value, CUdevice_attribute attribute, CUdevice device))                   \
  FUNCTION(cuDevicePrimaryCtxRetain, , (CUcontext* context, CUdevice device))                                     \
  FUNCTION(cuCtxGetCurrent, , (CUcontext* context))                                                               \
  FUNCTION(cuCtxGetDevice, , (CUdevice* device))                                                                  \
  FUNCTION(cuCtxPushCurrent, _v2, (CUcontext context))                                                            \
  FUNCTION(cuCtxPopCurrent, _v2, (CUcontext* context))                                                            \
  FUNCTION(cuPointerGetAttribute, , (void* value, CUpointer_attribute attribute, CUdeviceptr pointer))            \
  FUNCTION(cuModuleLoadDataEx, ,                                                                                  \
           (CUmodule* module, const void* image, unsigned count, CUjit_option* options, void** values))           \
  FUNCTION(cuModuleUnload, , (CUmodule module))                                                                   \
  FUNCTION(cuModuleGetFunction, , (CUfunction* function, CUmodule module, const char* name))                      \
  FUNCTION(cuFuncGetAttribute, , (int* value, CUfunction_attribute attribute, CUfunction function))               \
  OPTIONAL(cuFuncGetParamInfo, , (CUfunction function, size_t index, size_t* offset, size_t* bytes))              \
  FUNCTION(cuLaunchKernel, ,                                                                                      \
           (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,             \
            unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream, void** parameters,        \
            void** extra))                                                                                        \
  FUNCTION(cuStreamGetCtx, , (CUstream stream, CUcontext* context))                                               \
  FUNCTION(cuStreamSynchronize, , (CUstream stream))                                                              \
  FUNCTION(cuMemcpyDtoHAsync, _v2, (void* to, CUdeviceptr from, size_t bytes, CUstream stream))                   \
  FUNCTION(cuMemcpyHtoDAsync, _v2, (CUdeviceptr to, const void* from, size_t bytes, CUstream stream))              \
  FUNCTION(cuMemcpyDtoDAsync, _v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))

struct Driver {
#define ONNXFUSE_CUDA_MEMBER(name, version, parameters) CUresult(*name) parameters = nullptr;
  ONNXFUSE_CUDA_FUNCTIONS(ONNXFUSE_CUDA_MEMBER, ONNXFUSE_CUDA_MEMBER)
#undef ONNXFUSE_CUDA_MEMBER

  // "CUDA_ERROR_INVALID_VALUE: invalid argument"
  std::string describe(CUresult result) const;

  // Throws DriverError if `function` gave something else than success.
  void check(CUresult result, const char* function) const;
};

// A call of the driver that failed; its text names the function and the driver's reason.
class DriverError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The driver of this machine, opened and initialised by the first call and kept: ONNXFUSE_LIBCUDA names another library
// than libcuda.so.1.  Null if there is none that works; then `error` says why.
const Driver* open_driver(std::string* error);

}  // namespace onnxfuse::cuda

#endif  // ONNXFUSE_CUDA_DRIVER_H_
