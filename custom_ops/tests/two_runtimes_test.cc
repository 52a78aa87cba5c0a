// What the library gives two copies of ONNX Runtime in one process, which here are tables of functions: what was made for
// one is never another's.
//
//   two_runtimes_test PATH_OF_THE_LIBRARY
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "ort/ort_abi.h"

namespace {

using onnxfuse::kOrtApiVersion;
using Register = OrtStatus* (*)(OrtSessionOptions*, const OrtApiBase*);

#define CHECK(condition)                                                    \
  if (!(condition)) {                                                       \
    std::printf("%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
    std::exit(1);                                                           \
  }

// A copy of ONNX Runtime, with CUDA or without.
struct Runtime {
  bool has_cuda = false;
  OrtApi api{};
  OrtApiBase base{};
  std::set<const void*> made;                                  // domains
  std::vector<std::pair<const void*, const OrtCustomOp*>> ops;  // by the domain that has them
  std::vector<const void*> given;                              // domains that sessions were given
  int inferred = 0;                                            // nodes that it was asked about
};

template <int number> Runtime& runtime() {
  static Runtime one;
  return one;
}

char g_cpu[] = "CPUExecutionProvider";
char g_cuda[] = "CUDAExecutionProvider";
char* g_names[] = {g_cpu, g_cuda};
int g_status;

OrtStatus* failure() { return reinterpret_cast<OrtStatus*>(&g_status); }

template <int number> Runtime& make(bool has_cuda) {
  Runtime& one = runtime<number>();
  one.has_cuda = has_cuda;
  one.api.CreateStatus = [](OrtErrorCode, const char* message) {
    std::printf("%s\n", message);
    return failure();
  };
  one.api.GetAvailableProviders = [](char*** names, int* count) -> OrtStatus* {
    *names = g_names;
    *count = runtime<number>().has_cuda ? 2 : 1;
    return nullptr;
  };
  one.api.ReleaseAvailableProviders = [](char**, int) -> OrtStatus* { return nullptr; };
  one.api.HasSessionConfigEntry = [](const OrtSessionOptions*, const char*, int* has) -> OrtStatus* {
    *has = 0;
    return nullptr;
  };
  one.api.CreateCustomOpDomain = [](const char*, OrtCustomOpDomain** out) -> OrtStatus* {
    void* const domain = std::malloc(1);
    runtime<number>().made.insert(domain);
    *out = static_cast<OrtCustomOpDomain*>(domain);
    return nullptr;
  };
  one.api.CustomOpDomain_Add = [](OrtCustomOpDomain* domain, const OrtCustomOp* op) -> OrtStatus* {
    CHECK(runtime<number>().made.count(domain) == 1);
    runtime<number>().ops.emplace_back(domain, op);
    return nullptr;
  };
  one.api.AddCustomOpDomain = [](OrtSessionOptions*, OrtCustomOpDomain* domain) -> OrtStatus* {
    runtime<number>().given.push_back(domain);
    return nullptr;
  };
  // A node of which nothing can be told.
  one.api.ShapeInferContext_GetInputCount = [](const OrtShapeInferContext*, size_t*) {
    ++runtime<number>().inferred;
    return failure();
  };
  one.api.ShapeInferContext_GetAttribute = [](const OrtShapeInferContext*, const char*, const OrtOpAttr**) {
    ++runtime<number>().inferred;
    return failure();
  };
  one.api.ReleaseStatus = [](OrtStatus*) {};
  one.base.GetApi = [](uint32_t version) -> const OrtApi* {
    return version == kOrtApiVersion ? &runtime<number>().api : nullptr;
  };
  one.base.GetVersionString = [] { return "1.20.0"; };
  return one;
}

// What `one` was given is its own, and its callbacks ask it alone.
void check_own(const Runtime& one, const Runtime& other) {
  for (const void* domain : one.given) CHECK(one.made.count(domain) == 1);
  std::set<std::string> providers;
  for (const auto& [domain, op] : one.ops) providers.insert(op->GetExecutionProviderType(op));
  CHECK(providers.count(g_cpu) == 1);
  CHECK(providers.count(g_cuda) == (one.has_cuda ? 1 : 0));
  for (const auto& [domain, op] : one.ops) {
    const int before = one.inferred;
    const int before_of_other = other.inferred;
    op->InferOutputShapeFn(op, nullptr);
    CHECK(one.inferred > before);
    CHECK(other.inferred == before_of_other);
  }
}

}  // namespace

int main(int count, char** arguments) {
  CHECK(count == 2);
  void* const library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) std::printf("%s\n", dlerror());
  CHECK(library != nullptr);
  const auto register_ops = reinterpret_cast<Register>(dlsym(library, "RegisterCustomOps"));
  Runtime& plain = make<0>(false);
  Runtime& cuda = make<1>(true);
  for (int session = 1; session <= 2; ++session) {
    for (Runtime* one : {&plain, &cuda}) CHECK(register_ops(nullptr, &one->base) == nullptr);
    for (Runtime* one : {&plain, &cuda}) {
      CHECK(one->given.size() == static_cast<size_t>(session));
      CHECK(one->made.size() == 1);  // it serves all sessions
    }
    check_own(plain, cuda);
    check_own(cuda, plain);
  }
}
