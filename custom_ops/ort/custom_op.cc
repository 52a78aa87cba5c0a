#include "ort/custom_op.h"

#include <atomic>
#include <cstdlib>

namespace onnxfuse {
namespace {

struct Runtime {
  const OrtApi* api;
  const OrtApi24* newer;  // null if it is older
  const Runtime* next;
};

// Never destroyed: sessions may outlive static objects.
std::atomic<const Runtime*> g_runtimes{nullptr};

// Null if it is not known.
const Runtime* find_runtime(const OrtApi* api) {
  const Runtime* runtime = g_runtimes.load(std::memory_order_acquire);
  while (runtime != nullptr && runtime->api != api) runtime = runtime->next;
  return runtime;
}

const OrtApi24* find_newer(const OrtApiBase& base) {
  constexpr unsigned version = 24;
  char* rest = nullptr;
  const unsigned long major = std::strtoul(base.GetVersionString(), &rest, 10);
  const unsigned long minor = *rest == '.' ? std::strtoul(rest + 1, nullptr, 10) : 0;
  // ORT writes a line to stderr when it is asked for a version that it does not have.
  const bool has = major > 1 || (major == 1 && minor >= version);
  return has ? reinterpret_cast<const OrtApi24*>(base.GetApi(version)) : nullptr;
}

}  // namespace

void add_runtime(const OrtApi* api, const OrtApiBase& base) {
  if (is_runtime(api)) return;
  g_runtimes.store(new Runtime{api, find_newer(base), g_runtimes.load()}, std::memory_order_release);
}

bool is_runtime(const OrtApi* api) { return find_runtime(api) != nullptr; }

const OrtApi24* newer_api(const OrtApi* api) {
  const Runtime* const runtime = find_runtime(api);
  return runtime == nullptr ? nullptr : runtime->newer;
}

bool read_config_entry(const OrtApi* api, const OrtSessionOptions* options, const char* key, std::string* value) {
  int has = 0;
  check(api->HasSessionConfigEntry(options, key, &has));
  if (has == 0) return false;
  *value = read_string([&](char* out, size_t* size) { return api->GetSessionConfigEntry(options, key, out, size); });
  return true;
}

}  // namespace onnxfuse
