// The part of ONNX Runtime's C ABI that the library uses.
//
// OrtApi is a table of function pointers to which releases only append, so the slots in use are declared here at their
// fixed places, with padding between them; the static_asserts below pin each one.  Everything here exists in API
// version 20 (ONNX Runtime 1.20), which is the version that the library asks for.
#ifndef ONNXFUSE_ORT_ABI_H_
#define ONNXFUSE_ORT_ABI_H_

#include <cstddef>
#include <cstdint>

extern "C" {

struct OrtStatus;
struct OrtValue;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtTensorTypeAndShapeInfo;
struct OrtShapeInferContext;
struct OrtOpAttr;
struct OrtLogger;
struct OrtMemoryInfo;
struct OrtCustomOp;

enum OrtErrorCode : int { ORT_OK = 0, ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2, ORT_INVALID_GRAPH = 10 };

enum OrtLoggingLevel : int { ORT_LOGGING_LEVEL_WARNING = 2 };

enum OrtOpAttrType : int { ORT_OP_ATTR_INT = 1, ORT_OP_ATTR_INTS = 2, ORT_OP_ATTR_STRING = 5 };

enum OrtCustomOpInputOutputCharacteristic : int { INPUT_OUTPUT_VARIADIC = 2 };

enum OrtMemType : int { OrtMemTypeDefault = 0 };

struct OrtAllocator {
  uint32_t version;
  void* (*Alloc)(OrtAllocator* self, size_t size);
  void (*Free)(OrtAllocator* self, void* memory);
};

struct OrtApi {
  OrtStatus* (*CreateStatus)(OrtErrorCode code, const char* message);
  void* unused_1[25];
  OrtStatus* (*CreateCustomOpDomain)(const char* domain, OrtCustomOpDomain** out);
  OrtStatus* (*CustomOpDomain_Add)(OrtCustomOpDomain* domain, const OrtCustomOp* op);
  OrtStatus* (*AddCustomOpDomain)(OrtSessionOptions* options, OrtCustomOpDomain* domain);
  void* unused_29[22];
  OrtStatus* (*GetTensorMutableData)(OrtValue* value, void** out);
  void* unused_52[5];
  OrtStatus* (*CreateTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo** out);
  OrtStatus* (*SetTensorElementType)(OrtTensorTypeAndShapeInfo* info, int type);
  OrtStatus* (*SetDimensions)(OrtTensorTypeAndShapeInfo* info, const int64_t* dims, size_t count);
  OrtStatus* (*GetTensorElementType)(const OrtTensorTypeAndShapeInfo* info, int* out);
  OrtStatus* (*GetDimensionsCount)(const OrtTensorTypeAndShapeInfo* info, size_t* out);
  OrtStatus* (*GetDimensions)(const OrtTensorTypeAndShapeInfo* info, int64_t* dims, size_t count);
  OrtStatus* (*GetSymbolicDimensions)(const OrtTensorTypeAndShapeInfo* info, const char** names, size_t count);
  void* unused_64[1];
  OrtStatus* (*GetTensorTypeAndShape)(const OrtValue* value, OrtTensorTypeAndShapeInfo** out);
  void* unused_66[20];
  OrtStatus* (*KernelInfoGetAttribute_int64)(const OrtKernelInfo* info, const char* name, int64_t* out);
  OrtStatus* (*KernelInfoGetAttribute_string)(const OrtKernelInfo* info, const char* name, char* out, size_t* size);
  void* unused_88[2];
  OrtStatus* (*KernelContext_GetInput)(const OrtKernelContext* context, size_t index, const OrtValue** out);
  OrtStatus* (*KernelContext_GetOutput)(OrtKernelContext* context, size_t index, const int64_t* dims, size_t count,
                                        OrtValue** out);
  void* unused_92[1];
  void (*ReleaseStatus)(OrtStatus* status);
  void* unused_94[5];
  void (*ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo* info);
  void* unused_100[25];
  OrtStatus* (*GetAvailableProviders)(char*** names, int* count);
  OrtStatus* (*ReleaseAvailableProviders)(char** names, int count);
  void* unused_127[5];
  void (*ReleaseAllocator)(OrtAllocator* allocator);
  void* unused_133[30];
  OrtStatus* (*KernelInfoGetAttributeArray_int64)(const OrtKernelInfo* info, const char* name, int64_t* out,
                                                  size_t* count);
  void* unused_164[29];
  OrtStatus* (*KernelContext_GetGPUComputeStream)(const OrtKernelContext* context, void** out);
  OrtStatus* (*GetTensorMemoryInfo)(const OrtValue* value, const OrtMemoryInfo** out);
  void* unused_195[35];
  OrtStatus* (*KernelInfo_GetInputCount)(const OrtKernelInfo* info, size_t* out);
  OrtStatus* (*KernelInfo_GetOutputCount)(const OrtKernelInfo* info, size_t* out);
  void* unused_232[5];
  OrtStatus* (*HasSessionConfigEntry)(const OrtSessionOptions* options, const char* key, int* out);
  OrtStatus* (*GetSessionConfigEntry)(const OrtSessionOptions* options, const char* key, char* value, size_t* size);
  void* unused_239[5];
  OrtStatus* (*KernelInfo_GetNodeName)(const OrtKernelInfo* info, char* out, size_t* size);
  OrtStatus* (*KernelInfo_GetLogger)(const OrtKernelInfo* info, const OrtLogger** out);
  void* unused_246[1];
  OrtStatus* (*Logger_LogMessage)(const OrtLogger* logger, OrtLoggingLevel level, const char* message,
                                  const char* file, int line, const char* function);
  void* unused_248[5];
  OrtStatus* (*KernelContext_GetAllocator)(const OrtKernelContext* context, const OrtMemoryInfo* info,
                                           OrtAllocator** out);
  void* unused_254[13];
  OrtStatus* (*ShapeInferContext_GetInputCount)(const OrtShapeInferContext* context, size_t* out);
  OrtStatus* (*ShapeInferContext_GetInputTypeShape)(const OrtShapeInferContext* context, size_t index,
                                                    OrtTensorTypeAndShapeInfo** out);
  OrtStatus* (*ShapeInferContext_GetAttribute)(const OrtShapeInferContext* context, const char* name,
                                               const OrtOpAttr** out);
  OrtStatus* (*ShapeInferContext_SetOutputTypeShape)(const OrtShapeInferContext* context, size_t index,
                                                     const OrtTensorTypeAndShapeInfo* info);
  OrtStatus* (*SetSymbolicDimensions)(OrtTensorTypeAndShapeInfo* info, const char** names, size_t count);
  OrtStatus* (*ReadOpAttr)(const OrtOpAttr* attribute, OrtOpAttrType type, void* data, size_t size, size_t* out);
  void* unused_273[1];
  OrtStatus* (*KernelContext_ParallelFor)(const OrtKernelContext* context, void (*function)(void*, size_t),
                                          size_t total, size_t batches, void* data);
  void* unused_275[2];
  OrtStatus* (*KernelContext_GetScratchBuffer)(const OrtKernelContext* context, const OrtMemoryInfo* info,
                                               size_t bytes, void** out);
  OrtStatus* (*KernelInfoGetAllocator)(const OrtKernelInfo* info, OrtMemType type, OrtAllocator** out);
};

// What the library also uses where the running release has it: OrtApi as of version 24 (ONNX Runtime 1.24).
struct OrtApi24 {
  void* unused_0[414];
  OrtStatus* (*GetTensorElementTypeAndShapeDataReference)(const OrtValue* value, int* type, const int64_t** dims,
                                                          size_t* count);
};

struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

struct OrtCustomOp {
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info);
  const char* (*GetName)(const OrtCustomOp* op);
  const char* (*GetExecutionProviderType)(const OrtCustomOp* op);
  int (*GetInputType)(const OrtCustomOp* op, size_t index);
  size_t (*GetInputTypeCount)(const OrtCustomOp* op);
  int (*GetOutputType)(const OrtCustomOp* op, size_t index);
  size_t (*GetOutputTypeCount)(const OrtCustomOp* op);
  void (*KernelCompute)(void* kernel, OrtKernelContext* context);
  void (*KernelDestroy)(void* kernel);
  OrtCustomOpInputOutputCharacteristic (*GetInputCharacteristic)(const OrtCustomOp* op, size_t index);
  OrtCustomOpInputOutputCharacteristic (*GetOutputCharacteristic)(const OrtCustomOp* op, size_t index);
  OrtMemType (*GetInputMemoryType)(const OrtCustomOp* op, size_t index);
  int (*GetVariadicInputMinArity)(const OrtCustomOp* op);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp* op);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp* op);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp* op);
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info, void** kernel);
  OrtStatus* (*KernelComputeV2)(void* kernel, OrtKernelContext* context);
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp* op, OrtShapeInferContext* context);
  int (*GetStartVersion)(const OrtCustomOp* op);
  int (*GetEndVersion)(const OrtCustomOp* op);
  size_t (*GetMayInplace)(int** inputs, int** outputs);
  void (*ReleaseMayInplace)(int* inputs, int* outputs);
  size_t (*GetAliasMap)(int** inputs, int** outputs);
  void (*ReleaseAliasMap)(int* inputs, int* outputs);
};

}  // extern "C"

namespace onnxfuse {

constexpr uint32_t kOrtApiVersion = 20;

#define ONNXFUSE_SLOT(index, member) \
  static_assert(offsetof(OrtApi, member) == (index) * sizeof(void*), "OrtApi slot " #index " is not " #member)
ONNXFUSE_SLOT(0, CreateStatus);
ONNXFUSE_SLOT(26, CreateCustomOpDomain);
ONNXFUSE_SLOT(27, CustomOpDomain_Add);
ONNXFUSE_SLOT(28, AddCustomOpDomain);
ONNXFUSE_SLOT(51, GetTensorMutableData);
ONNXFUSE_SLOT(57, CreateTensorTypeAndShapeInfo);
ONNXFUSE_SLOT(58, SetTensorElementType);
ONNXFUSE_SLOT(59, SetDimensions);
ONNXFUSE_SLOT(60, GetTensorElementType);
ONNXFUSE_SLOT(61, GetDimensionsCount);
ONNXFUSE_SLOT(62, GetDimensions);
ONNXFUSE_SLOT(63, GetSymbolicDimensions);
ONNXFUSE_SLOT(65, GetTensorTypeAndShape);
ONNXFUSE_SLOT(86, KernelInfoGetAttribute_int64);
ONNXFUSE_SLOT(87, KernelInfoGetAttribute_string);
ONNXFUSE_SLOT(90, KernelContext_GetInput);
ONNXFUSE_SLOT(91, KernelContext_GetOutput);
ONNXFUSE_SLOT(93, ReleaseStatus);
ONNXFUSE_SLOT(99, ReleaseTensorTypeAndShapeInfo);
ONNXFUSE_SLOT(125, GetAvailableProviders);
ONNXFUSE_SLOT(126, ReleaseAvailableProviders);
ONNXFUSE_SLOT(132, ReleaseAllocator);
ONNXFUSE_SLOT(163, KernelInfoGetAttributeArray_int64);
ONNXFUSE_SLOT(193, KernelContext_GetGPUComputeStream);
ONNXFUSE_SLOT(194, GetTensorMemoryInfo);
ONNXFUSE_SLOT(230, KernelInfo_GetInputCount);
ONNXFUSE_SLOT(231, KernelInfo_GetOutputCount);
ONNXFUSE_SLOT(237, HasSessionConfigEntry);
ONNXFUSE_SLOT(238, GetSessionConfigEntry);
ONNXFUSE_SLOT(244, KernelInfo_GetNodeName);
ONNXFUSE_SLOT(245, KernelInfo_GetLogger);
ONNXFUSE_SLOT(247, Logger_LogMessage);
ONNXFUSE_SLOT(253, KernelContext_GetAllocator);
ONNXFUSE_SLOT(267, ShapeInferContext_GetInputCount);
ONNXFUSE_SLOT(268, ShapeInferContext_GetInputTypeShape);
ONNXFUSE_SLOT(269, ShapeInferContext_GetAttribute);
ONNXFUSE_SLOT(270, ShapeInferContext_SetOutputTypeShape);
ONNXFUSE_SLOT(271, SetSymbolicDimensions);
ONNXFUSE_SLOT(272, ReadOpAttr);
ONNXFUSE_SLOT(274, KernelContext_ParallelFor);
ONNXFUSE_SLOT(277, KernelContext_GetScratchBuffer);
ONNXFUSE_SLOT(278, KernelInfoGetAllocator);
#undef ONNXFUSE_SLOT

}  // namespace onnxfuse

#endif  // ONNXFUSE_ORT_ABI_H_
