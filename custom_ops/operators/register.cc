// The library's entry points.
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "operators/families.h"
#include "operators/listed_operators.h"
#include "operators/operator_names.h"
#include "ort/custom_op.h"
#include "ort/ort_abi.h"
#include "ort/ort_call.h"
#include "platform/error.h"
#include "platform/exports.h"
#include "platform/forks.h"
#include "platform/system.h"

namespace onnxfuse {
namespace {

constexpr char kDomain[] = "onnxfuse";

// Entries of a session's configuration: the operators to register, as write_operators writes them, or the path of the
// model that they are for.  ORT takes its time for each operator whenever it creates a session.
constexpr char kOperatorsKey[] = "onnxfuse.operators";
constexpr char kModelKey[] = "onnxfuse.model";
constexpr char kPlain[] = "*";
// Of an entry's value: ORT before 1.24 takes 2048 bytes, and there is room for kPlain before it.
constexpr size_t kLongestValue = 2000;
// Environment variable: how many operators of each family are registered where neither entry is there.
constexpr char kNames[] = "ONNXFUSE_NAMES";

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
  for (const OpFamily& family : all_families()) {
    if (cuda || !family.on_gpu) families.push_back(family);
  }
  return known[api] = std::move(families);
}

struct SharedOp {
  std::string name;
  NamedOp op;
};

// Operator `number` of a family, or the same for tensors of float alone: ORT makes a list of types for an operator of any
// tensors, which takes it two thirds of the time of registering one.  It lives for ever, from when a session first wants it.
const OrtCustomOp* shared_op(const OrtApi* api, size_t index, const OpFamily& family, int number, bool of_floats) {
  static auto& ops = *new std::map<std::tuple<const OrtApi*, size_t, int, bool>, SharedOp>;
  const auto [found, is_new] = ops.try_emplace({api, index, number, of_floats});
  SharedOp& shared = found->second;
  if (is_new) {
    shared.name = operator_name(family.name, number);
    shared.op = family.make(shared.name.c_str());
    shared.op.api = api;
    if (of_floats) shared.op.element_type = kFloat;
  }
  return &shared.op;
}

// The operators that the configuration of a session asks for.
std::vector<OperatorRange> listed_operators(const OrtApi* api, const OrtSessionOptions* options) {
  std::string entry;
  if (read_config_entry(api, options, kOperatorsKey, &entry)) return parse_operators(entry);
  if (!read_config_entry(api, options, kModelKey, &entry)) return parse_operators(kPlain);
  try {
    return list_operators(ModelBytes(entry.c_str()), kDomain);
  } catch (const Error& error) {
    throw Error("the session's entry " + std::string(kModelKey) + " names no model: " + entry + ": " + error.what());
  }
}

// How many of a family are registered where nothing is known of the model.
int plain_operators(const OpFamily& family) {
  const char* wish = std::getenv(kNames);
  std::string_view text = wish == nullptr ? "" : wish;
  const int number = take_number(&text);
  return number > 0 && text.empty() ? number : family.plain;
}

// The operators of a session that asks for these.
std::vector<const OrtCustomOp*> wanted_operators(const OrtApi* api, const std::vector<OperatorRange>& listed) {
  const std::vector<OpFamily>& families = find_families(api);
  std::vector<const OrtCustomOp*> operators;
  for (size_t index = 0; index < families.size(); ++index) {
    const OpFamily& family = families[index];
    std::map<int, bool> of_floats;  // by number
    for (const OperatorRange& range : listed) {
      const bool plain = range.family == kPlain;
      if (!plain && range.family != family.name) continue;
      const int last = plain ? plain_operators(family) : range.last;
      for (int number = range.first; number <= last; ++number) of_floats.emplace(number, range.of_floats);
    }
    for (const auto& [number, floats] : of_floats) operators.push_back(shared_op(api, index, family, number, floats));
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

extern "C" ONNXFUSE_EXPORT OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base) {
  onnxfuse::stay_loaded();
  const OrtApi* api = base->GetApi(onnxfuse::kOrtApiVersion);
  if (api == nullptr) {
    // Only the first slots, which every version has, can be used to say so.
    const OrtApi* oldest = base->GetApi(1);
    return oldest == nullptr ? nullptr : oldest->CreateStatus(ORT_FAIL, "onnxfuse needs ONNX Runtime 1.20 or newer");
  }
  return onnxfuse::guarded(api, ORT_FAIL, "onnxfuse: ", [&] {
    const auto listed = onnxfuse::listed_operators(api, options);  // perhaps from a file, for which others need not wait
    const std::lock_guard<std::mutex> lock(onnxfuse::mutex_of(onnxfuse::kDomain));
    onnxfuse::add_runtime(api, *base);
    const auto operators = onnxfuse::wanted_operators(api, listed);
    if (operators.empty()) return;
    onnxfuse::check(api->AddCustomOpDomain(options, onnxfuse::shared_domain(api, operators)));
  });
}

// The operators that a model has, a file at `path` or `size` bytes at `data` where that is null: what write_operators writes
// of them goes to `names`, with a 0 behind, which is to be the value of a session's entry kOperatorsKey; without types if
// it is too long for one with them.  Returns its length, or -1 if this is no model or it takes more than `capacity` bytes.
extern "C" ONNXFUSE_EXPORT int64_t onnxfuse_operators(const char* path, const void* data, size_t size, char* names,
                                                      size_t capacity) {
  try {
    const auto found = path != nullptr ? onnxfuse::list_operators(onnxfuse::ModelBytes(path), onnxfuse::kDomain)
                                       : onnxfuse::list_operators({data, size}, onnxfuse::kDomain);
    std::string text = onnxfuse::write_operators(found);
    if (text.size() > onnxfuse::kLongestValue) text = onnxfuse::write_operators(onnxfuse::without_types(found));
    if (text.size() > onnxfuse::kLongestValue || text.size() >= capacity) return -1;
    std::memcpy(names, text.c_str(), text.size() + 1);
    return static_cast<int64_t>(text.size());
  } catch (...) {
    return -1;
  }
}
