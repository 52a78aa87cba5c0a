/* Runs a fused model once on ones: ./main fused.onnx D0 D1 ..., the sizes of its one float32 input, and prints the first
   values of its one output.  See examples/README.md for how to build it. */
#include <onnxruntime_c_api.h>
#include <stdio.h>
#include <stdlib.h>

#include "onnxfuse.h"

static const OrtApi* api;

static void check(OrtStatus* status) {
  if (status == NULL) return;
  fprintf(stderr, "error: %s\n", api->GetErrorMessage(status));
  exit(2);
}

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: %s fused.onnx SIZE...\n", argv[0]);
    return 2;
  }
  api = OrtGetApiBase()->GetApi(20);
  if (api == NULL) {
    fprintf(stderr, "error: ONNX Runtime 1.20 or later is needed\n");
    return 2;
  }
  OrtEnv* env;
  OrtSessionOptions* options;
  OrtSession* session;
  check(api->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "example", &env));
  check(api->CreateSessionOptions(&options));
  check(onnxfuse_register(api, options, argv[1]));
#ifdef _WIN32
  wchar_t path[ONNXFUSE_LONGEST_PATH];
  MultiByteToWideChar(CP_ACP, 0, argv[1], -1, path, ONNXFUSE_LONGEST_PATH);
#else
  const char* path = argv[1];
#endif
  check(api->CreateSession(env, path, options, &session));

  int64_t sizes[8];
  size_t rank = (size_t)argc - 2, count = 1, i;
  for (i = 0; i < rank && i < 8; ++i) count *= (size_t)(sizes[i] = atoll(argv[i + 2]));
  float* data = malloc(count * sizeof(float));
  for (i = 0; i < count; ++i) data[i] = 1;

  OrtAllocator* allocator;
  OrtMemoryInfo* memory;
  OrtValue *x, *y = NULL;
  char *input, *output;
  check(api->GetAllocatorWithDefaultOptions(&allocator));
  check(api->SessionGetInputName(session, 0, allocator, &input));
  check(api->SessionGetOutputName(session, 0, allocator, &output));
  check(api->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));
  check(api->CreateTensorWithDataAsOrtValue(memory, data, count * sizeof(float), sizes, rank,
                                            ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &x));
  check(api->Run(session, NULL, (const char* const*)&input, (const OrtValue* const*)&x, 1, (const char* const*)&output, 1,
                 &y));
  float* result;
  check(api->GetTensorMutableData(y, (void**)&result));
  for (i = 0; i < count && i < 4; ++i) printf("%g\n", result[i]);

  api->ReleaseValue(y);
  api->ReleaseValue(x);
  api->ReleaseMemoryInfo(memory);
  check(api->AllocatorFree(allocator, input));
  check(api->AllocatorFree(allocator, output));
  api->ReleaseSession(session);
  api->ReleaseSessionOptions(options);
  api->ReleaseEnv(env);
  free(data);
  return 0;
}
