/* The part of ONNX Runtime's C ABI that examples/c uses, for machines without its headers: releases only append to the table,
   so its functions are declared at their places, with padding between them. */
#ifndef ONNXRUNTIME_C_API_H_
#define ONNXRUNTIME_C_API_H_

#include <stddef.h>
#include <stdint.h>

#ifdef _WIN32
#include <wchar.h>
#define ORTCHAR_T wchar_t
#else
#define ORTCHAR_T char
#endif

typedef struct OrtStatus OrtStatus;
typedef struct OrtEnv OrtEnv;
typedef struct OrtSession OrtSession;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtRunOptions OrtRunOptions;
typedef struct OrtAllocator OrtAllocator;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtValue OrtValue;

typedef enum { ORT_NO_SUCHFILE = 3 } OrtErrorCode;
typedef enum { ORT_LOGGING_LEVEL_WARNING = 2 } OrtLoggingLevel;
typedef enum { OrtArenaAllocator = 1 } OrtAllocatorType;
typedef enum { OrtMemTypeDefault = 0 } OrtMemType;
typedef enum { ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1 } ONNXTensorElementDataType;

typedef struct OrtApi {
  OrtStatus* (*CreateStatus)(OrtErrorCode code, const char* message);
  void* unused_1[1];
  const char* (*GetErrorMessage)(const OrtStatus* status);
  OrtStatus* (*CreateEnv)(OrtLoggingLevel level, const char* name, OrtEnv** out);
  void* unused_4[3];
  OrtStatus* (*CreateSession)(const OrtEnv* env, const ORTCHAR_T* path, const OrtSessionOptions* options, OrtSession** out);
  void* unused_8[1];
  OrtStatus* (*Run)(OrtSession* session, const OrtRunOptions* options, const char* const* input_names,
                    const OrtValue* const* inputs, size_t input_count, const char* const* output_names,
                    size_t output_count, OrtValue** outputs);
  OrtStatus* (*CreateSessionOptions)(OrtSessionOptions** out);
  void* unused_11[25];
  OrtStatus* (*SessionGetInputName)(const OrtSession* session, size_t index, OrtAllocator* allocator, char** out);
  OrtStatus* (*SessionGetOutputName)(const OrtSession* session, size_t index, OrtAllocator* allocator, char** out);
  void* unused_38[11];
  OrtStatus* (*CreateTensorWithDataAsOrtValue)(const OrtMemoryInfo* info, void* data, size_t size, const int64_t* dims,
                                               size_t rank, ONNXTensorElementDataType type, OrtValue** out);
  void* unused_50[1];
  OrtStatus* (*GetTensorMutableData)(OrtValue* value, void** out);
  void* unused_52[17];
  OrtStatus* (*CreateCpuMemoryInfo)(OrtAllocatorType type, OrtMemType memory, OrtMemoryInfo** out);
  void* unused_70[6];
  OrtStatus* (*AllocatorFree)(OrtAllocator* allocator, void* memory);
  void* unused_77[1];
  OrtStatus* (*GetAllocatorWithDefaultOptions)(OrtAllocator** out);
  void* unused_79[13];
  void (*ReleaseEnv)(OrtEnv* env);
  void (*ReleaseStatus)(OrtStatus* status);
  void (*ReleaseMemoryInfo)(OrtMemoryInfo* info);
  void (*ReleaseSession)(OrtSession* session);
  void (*ReleaseValue)(OrtValue* value);
  void* unused_97[3];
  void (*ReleaseSessionOptions)(OrtSessionOptions* options);
  void* unused_101[29];
  OrtStatus* (*AddSessionConfigEntry)(OrtSessionOptions* options, const char* key, const char* value);
  void* unused_131[97];
  OrtStatus* (*RegisterCustomOpsLibrary_V2)(OrtSessionOptions* options, const ORTCHAR_T* path);
} OrtApi;

typedef struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)(void);
} OrtApiBase;

#ifdef __cplusplus
extern "C"
#endif
const OrtApiBase* OrtGetApiBase(void);

#endif
