// A custom-op library that calls every function of ort_abi.h and looks at what it does, so that a slot declared at the
// wrong place cannot go unnoticed.  tests/custom_ops/library/test_cpp.py builds it, runs a model with its op in the running
// ONNX Runtime, and compares onnxfuse_probe_passed() with the slots that the header declares.
//
// The model: Probe(a: f32[n,3], b: f32[3], program = "the text", count = 7, sizes = [3, 1, 2]) -> c, named "the_probe".
// c = a, or an error if a[0] is -1.  The session's configuration has an entry "probe.entry" = "set".
#include "ort/ort_abi.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace {

constexpr char kText[] = "the text";
const OrtApi* g_api = nullptr;
const OrtApi24* g_newer_api = nullptr;
std::mutex g_mutex;
std::set<std::string> g_passed;
std::set<std::string> g_failed;

void expect(const char* slot, bool good) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  (good ? g_passed : g_failed).insert(slot);
}

#define EXPECT(slot, condition) expect(#slot, condition)
// Calls a slot; it passes if it succeeds and what it gave is as it should be.
#define CALL(slot, condition, ...) expect(#slot, g_api->slot(__VA_ARGS__) == nullptr && (condition))

OrtStatus* infer_shapes(const OrtCustomOp*, OrtShapeInferContext* context) {
  size_t count = 0;
  CALL(ShapeInferContext_GetInputCount, count == 2, context, &count);

  OrtTensorTypeAndShapeInfo* info = nullptr;
  CALL(ShapeInferContext_GetInputTypeShape, info != nullptr, context, 0, &info);
  int type = 0;
  CALL(GetTensorElementType, type == 1, info, &type);
  size_t rank = 0;
  CALL(GetDimensionsCount, rank == 2, info, &rank);
  int64_t sizes[2] = {};
  CALL(GetDimensions, sizes[0] == -1 && sizes[1] == 3, info, sizes, 2);
  const char* names[2] = {};
  CALL(GetSymbolicDimensions, names[0] != nullptr && std::strcmp(names[0], "n") == 0, info, names, 2);

  const OrtOpAttr* attribute = nullptr;
  CALL(ShapeInferContext_GetAttribute, attribute != nullptr, context, "program", &attribute);
  size_t size = 0;
  if (OrtStatus* status = g_api->ReadOpAttr(attribute, ORT_OP_ATTR_STRING, nullptr, 0, &size)) g_api->ReleaseStatus(status);
  std::vector<char> text(size + 1);
  CALL(ReadOpAttr, std::strcmp(text.data(), kText) == 0, attribute, ORT_OP_ATTR_STRING, text.data(), size, &size);
  int64_t number = 0;
  CALL(ShapeInferContext_GetAttribute, attribute != nullptr, context, "count", &attribute);
  CALL(ReadOpAttr, number == 7, attribute, ORT_OP_ATTR_INT, &number, sizeof(number), &size);
  int64_t numbers[3] = {};
  CALL(ShapeInferContext_GetAttribute, attribute != nullptr, context, "sizes", &attribute);
  CALL(ReadOpAttr, size == sizeof(numbers) && numbers[0] == 3 && numbers[2] == 2, attribute, ORT_OP_ATTR_INTS, numbers,
       sizeof(numbers), &size);

  // What is set here is what the session tells of its output.
  OrtTensorTypeAndShapeInfo* result = nullptr;
  CALL(CreateTensorTypeAndShapeInfo, result != nullptr, &result);
  CALL(SetTensorElementType, g_api->GetTensorElementType(result, &type) == nullptr && type == 1, result, 1);
  CALL(SetDimensions, g_api->GetDimensionsCount(result, &rank) == nullptr && rank == 2, result, sizes, 2);
  CALL(SetSymbolicDimensions, true, result, names, 2);
  CALL(ShapeInferContext_SetOutputTypeShape, true, context, 0, result);
  g_api->ReleaseTensorTypeAndShapeInfo(result);
  return nullptr;
}

OrtStatus* create_kernel(const OrtCustomOp*, const OrtApi* api, const OrtKernelInfo* info, void** kernel) {
  expect("GetApi", api == g_api);
  size_t count = 0;
  CALL(KernelInfo_GetInputCount, count == 2, info, &count);
  CALL(KernelInfo_GetOutputCount, count == 1, info, &count);
  char text[64] = {};
  size_t size = sizeof(text);
  CALL(KernelInfo_GetNodeName, std::strcmp(text, "the_probe") == 0 && size == sizeof("the_probe"), info, text, &size);
  size = sizeof(text);
  CALL(KernelInfoGetAttribute_string, std::strcmp(text, kText) == 0 && size == sizeof(kText), info, "program", text, &size);
  int64_t number = 0;
  CALL(KernelInfoGetAttribute_int64, number == 7, info, "count", &number);
  int64_t numbers[3] = {};
  size = 3;
  CALL(KernelInfoGetAttributeArray_int64, size == 3 && numbers[0] == 3 && numbers[2] == 2, info, "sizes", numbers, &size);
  const OrtLogger* logger = nullptr;
  CALL(KernelInfo_GetLogger, logger != nullptr, info, &logger);
  constexpr auto fatal = static_cast<OrtLoggingLevel>(4);
  CALL(Logger_LogMessage, true, logger, fatal, "the probe's log line", "abi_probe.cc", __LINE__, "create_kernel");
  OrtAllocator* allocator = nullptr;
  CALL(KernelInfoGetAllocator, allocator != nullptr, info, OrtMemTypeDefault, &allocator);
  void* const allocated = allocator->Alloc(allocator, 64);
  EXPECT(KernelInfoGetAllocator, allocated != nullptr);
  std::memset(allocated, 1, 64);
  allocator->Free(allocator, allocated);
  g_api->ReleaseAllocator(allocator);
  static int probe;
  *kernel = &probe;
  return nullptr;
}

long resident_pages() {
  long total = 0;
  long resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident;
}

// Memory of the provider that has `value`.
void probe_memory(const OrtKernelContext* context, const OrtValue* value) {
  const OrtMemoryInfo* memory = nullptr;
  CALL(GetTensorMemoryInfo, memory != nullptr, value, &memory);
  OrtAllocator* allocator = nullptr;
  CALL(KernelContext_GetAllocator, allocator != nullptr, context, memory, &allocator);
  void* allocated = allocator->Alloc(allocator, 64);
  EXPECT(KernelContext_GetAllocator, allocated != nullptr);
  std::memset(allocated, 1, 64);
  allocator->Free(allocator, allocated);
  // What GetAllocator makes is small, but not when it is a million times that it stays.
  const long before = resident_pages();
  for (int i = 0; i < 1000000; ++i) {
    g_api->ReleaseAllocator(allocator);
    if (g_api->KernelContext_GetAllocator(context, memory, &allocator) != nullptr) return;
  }
  g_api->ReleaseAllocator(allocator);
  EXPECT(ReleaseAllocator, resident_pages() - before < 16 * (1 << 20) / sysconf(_SC_PAGESIZE));
  // The CPU provider has no stream, without which some releases crash unless nothing is asked for.
  void* scratch = &allocated;
  CALL(KernelContext_GetScratchBuffer, scratch == nullptr, context, memory, 0, &scratch);
}

OrtStatus* compute(void*, OrtKernelContext* context) {
  const OrtValue* a = nullptr;
  CALL(KernelContext_GetInput, a != nullptr, context, 0, &a);
  OrtTensorTypeAndShapeInfo* info = nullptr;
  int64_t sizes[2] = {};
  CALL(GetTensorTypeAndShape, g_api->GetDimensions(info, sizes, 2) == nullptr && sizes[0] == 2 && sizes[1] == 3, a, &info);
  g_api->ReleaseTensorTypeAndShapeInfo(info);
  EXPECT(ReleaseTensorTypeAndShapeInfo, true);

  if (g_newer_api != nullptr) {
    int type = 0;
    const int64_t* dims = nullptr;
    size_t rank = 0;
    const bool done = g_newer_api->GetTensorElementTypeAndShapeDataReference(a, &type, &dims, &rank) == nullptr;
    EXPECT(GetTensorElementTypeAndShapeDataReference, done && type == 1 && rank == 2 && dims[0] == 2 && dims[1] == 3);
  }

  void* from = nullptr;
  CALL(GetTensorMutableData, static_cast<const float*>(from)[5] == 5.0f, const_cast<OrtValue*>(a), &from);
  if (static_cast<const float*>(from)[0] == -1.0f) return g_api->CreateStatus(ORT_INVALID_ARGUMENT, "the probe's message");

  // The CPU provider has no stream.
  void* stream = context;
  CALL(KernelContext_GetGPUComputeStream, stream == nullptr, context, &stream);

  OrtValue* c = nullptr;
  CALL(KernelContext_GetOutput, c != nullptr, context, 0, sizes, 2, &c);
  probe_memory(context, c);
  void* to = nullptr;
  g_api->GetTensorMutableData(c, &to);
  std::memcpy(to, from, 6 * sizeof(float));

  std::vector<std::atomic<int>> calls(100);
  const auto count = [](void* data, size_t i) { ++(*static_cast<std::vector<std::atomic<int>>*>(data))[i]; };
  bool each_once = g_api->KernelContext_ParallelFor(context, count, calls.size(), 0, &calls) == nullptr;
  for (const auto& number : calls) each_once = each_once && number == 1;
  EXPECT(KernelContext_ParallelFor, each_once);
  return nullptr;
}

OrtCustomOp make_op() {
  OrtCustomOp op{};
  op.version = onnxfuse::kOrtApiVersion;
  op.GetName = [](const OrtCustomOp*) { return "Probe"; };
  op.GetExecutionProviderType = [](const OrtCustomOp*) { return "CPUExecutionProvider"; };
  op.GetInputType = [](const OrtCustomOp*, size_t) { return 0; };
  op.GetInputTypeCount = [](const OrtCustomOp*) { return size_t{1}; };
  op.GetOutputType = op.GetInputType;
  op.GetOutputTypeCount = op.GetInputTypeCount;
  op.KernelDestroy = [](void*) {};
  op.GetInputCharacteristic = [](const OrtCustomOp*, size_t) { return INPUT_OUTPUT_VARIADIC; };
  op.GetOutputCharacteristic = op.GetInputCharacteristic;
  op.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return OrtMemTypeDefault; };
  op.GetVariadicInputMinArity = [](const OrtCustomOp*) { return 0; };
  op.GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 0; };
  op.GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
  op.GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 0; };
  op.CreateKernelV2 = create_kernel;
  op.KernelComputeV2 = compute;
  op.InferOutputShapeFn = infer_shapes;
  op.GetStartVersion = [](const OrtCustomOp*) { return 1; };
  op.GetEndVersion = [](const OrtCustomOp*) { return INT32_MAX; };
  op.GetMayInplace = [](int**, int**) { return size_t{0}; };
  op.ReleaseMayInplace = [](int*, int*) {};
  op.GetAliasMap = [](int**, int**) { return size_t{0}; };
  op.ReleaseAliasMap = [](int*, int*) {};
  return op;
}

std::string join(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += name + " ";
  return text;
}

}  // namespace

// The slots that did what they should, and those that once did not, separated by spaces.
extern "C" const char* onnxfuse_probe_passed() {
  static std::string text;
  return (text = join(g_passed)).c_str();
}

extern "C" const char* onnxfuse_probe_failed() {
  static std::string text;
  return (text = join(g_failed)).c_str();
}

extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  g_api = base->GetApi(onnxfuse::kOrtApiVersion);
  EXPECT(GetVersionString, std::strncmp(base->GetVersionString(), "1.", 2) == 0);
  if (std::atoi(base->GetVersionString() + 2) >= 24) g_newer_api = reinterpret_cast<const OrtApi24*>(base->GetApi(24));
  static const OrtCustomOp op = make_op();
  OrtCustomOpDomain* domain = nullptr;
  CALL(CreateCustomOpDomain, domain != nullptr, "onnxfuse_probe", &domain);
  CALL(CustomOpDomain_Add, true, domain, &op);
  CALL(AddCustomOpDomain, true, options, domain);

  int has = 0;
  CALL(HasSessionConfigEntry, has == 1, options, "probe.entry", &has);
  char entry[8] = {};
  size_t size = sizeof(entry);
  CALL(GetSessionConfigEntry, std::strcmp(entry, "set") == 0, options, "probe.entry", entry, &size);
  char** providers = nullptr;
  int count = 0;
  CALL(GetAvailableProviders, std::strcmp(providers[count - 1], "CPUExecutionProvider") == 0, &providers, &count);
  CALL(ReleaseAvailableProviders, true, providers, count);

  // A status holds a copy of its message: were it not released, its megabytes would stay.
  const std::string message(size_t{1} << 20, 'x');
  const long before = resident_pages();
  for (int i = 0; i < 64; ++i) {
    OrtStatus* status = g_api->CreateStatus(ORT_FAIL, message.c_str());
    EXPECT(CreateStatus, status != nullptr);
    g_api->ReleaseStatus(status);
  }
  EXPECT(ReleaseStatus, resident_pages() - before < 32 * (1 << 20) / sysconf(_SC_PAGESIZE));
  return nullptr;
}
