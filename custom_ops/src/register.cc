// The library's entry points.
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "custom_op.h"
#include "forks.h"
#include "fused_conv.h"
#include "fused_elementwise.h"
#include "fused_on_cpu.h"
#include "listed_operators.h"
#include "ort_abi.h"
#include "ort_call.h"

namespace onnxfuse {
namespace {

constexpr char kDomain[] = "onnxfuse";

// The operators to register, as list_operators writes them; all without such an entry.  ORT takes its time for each of
// them whenever it creates a session.
constexpr char kOperatorsKey[] = "onnxfuse.operators";
constexpr int kFloat = 1;  // ONNX's number

// Whether this ONNX Runtime has the CUDA provider.
bool has_cuda(const OrtApi* api) {
  char** names = nullptr;
  int count = 0;
  check(api->GetAvailableProviders(&names, &count));
  bool found = false;
  for (int i = 0; i < count; ++i) found = found || std::strcmp(names[i], cuda_provider(nullptr)) == 0;
  check(api->ReleaseAvailableProviders(names, count));
  return found;
}

// The operators that this ONNX Runtime has a provider for, in the order in which they are registered.
const std::vector<OpFamily>& find_families(const OrtApi* api) {
  static auto& known = *new std::map<const OrtApi*, std::vector<OpFamily>>;
  const auto found = known.find(api);
  if (found != known.end()) return found->second;
  std::vector<OpFamily> families;
  const bool cuda = has_cuda(api);
  for (const auto& some : {fused_elementwise(), fused_conv(), fused_on_cpu()}) {
    for (const OpFamily& family : some) {
      if (cuda || !family.on_gpu) families.push_back(family);
    }
  }
  return known[api] = std::move(families);
}

// One of them, or the same for tensors of float alone: ORT makes a list of types for an operator of any tensors, which takes
// it half of the time of registering one.  It lives for ever, from when a session first wants it.
const OrtCustomOp* shared_op(const OrtApi* api, size_t number, const OpFamily& family, const char* name, bool of_floats) {
  static auto& ops = *new std::map<std::tuple<const OrtApi*, size_t, std::string_view, bool>, NamedOp>;
  const auto [found, is_new] = ops.try_emplace({api, number, name, of_floats});
  if (is_new) {
    found->second = family.make(name);
    found->second.api = api;
    if (of_floats) found->second.element_type = kFloat;
  }
  return &found->second;
}

// The operators of a session with these options.
std::vector<const OrtCustomOp*> wanted_operators(const OrtApi* api, const OrtSessionOptions* options) {
  const std::vector<OpFamily>& families = find_families(api);
  std::string entry;
  const bool listed = read_config_entry(api, options, kOperatorsKey, &entry);
  const ListedOperators wanted = parse_operators(entry);
  std::vector<const OrtCustomOp*> operators;
  for (size_t number = 0; number < families.size(); ++number) {
    for (const char* name : families[number].names) {
      const auto found = wanted.find(name);
      if (listed && found == wanted.end()) continue;
      operators.push_back(shared_op(api, number, families[number], name, listed && found->second));
    }
  }
  return operators;
}

// A domain with these operators, which belong to one ONNX Runtime.  It serves every session of it that wants the same; ORT
// only refers to it, so it is never released.
OrtCustomOpDomain* shared_domain(const OrtApi* api, const std::vector<const OrtCustomOp*>& operators) {
  static auto& domains = *new std::map<std::vector<const OrtCustomOp*>, OrtCustomOpDomain*>;
  const auto known = domains.find(operators);
  if (known != domains.end()) return known->second;
  OrtCustomOpDomain* domain = nullptr;
  check(api->CreateCustomOpDomain(kDomain, &domain));
  for (const OrtCustomOp* op : operators) check(api->CustomOpDomain_Add(domain, op));
  return domains[operators] = domain;
}

}  // namespace
}  // namespace onnxfuse

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                                                               const OrtApiBase* base) {
  const OrtApi* api = base->GetApi(onnxfuse::kOrtApiVersion);
  if (api == nullptr) {
    // Only the first slots, which every version has, can be used to say so.
    const OrtApi* oldest = base->GetApi(1);
    return oldest == nullptr ? nullptr : oldest->CreateStatus(ORT_FAIL, "onnxfuse needs ONNX Runtime 1.20 or newer");
  }
  return onnxfuse::guarded(api, ORT_FAIL, "onnxfuse: ", [&] {
    const std::lock_guard<std::mutex> lock(onnxfuse::mutex_of(onnxfuse::kDomain));
    onnxfuse::add_runtime(api, *base);
    const auto operators = onnxfuse::wanted_operators(api, options);
    if (operators.empty()) return;
    onnxfuse::check(api->AddCustomOpDomain(options, onnxfuse::shared_domain(api, operators)));
  });
}

// The operators that a model has, a file at `path` or `size` bytes at `data` where that is null: what list_operators writes
// of them goes to `names`, with a 0 behind, which is to be the value of a session's entry kOperatorsKey.  Returns its
// length, or -1 if this is no model or it takes more than `capacity` bytes.
extern "C" __attribute__((visibility("default"))) int64_t onnxfuse_operators(const char* path, const void* data,
                                                                             size_t size, char* names,
                                                                             size_t capacity) {
  try {
    const auto found = path != nullptr ? onnxfuse::list_operators(onnxfuse::ModelBytes(path), onnxfuse::kDomain)
                                       : onnxfuse::list_operators({data, size}, onnxfuse::kDomain);
    if (found.size() >= capacity) return -1;
    std::memcpy(names, found.c_str(), found.size() + 1);
    return static_cast<int64_t>(found.size());
  } catch (...) {
    return -1;
  }
}
