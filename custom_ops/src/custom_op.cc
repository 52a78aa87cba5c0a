#include "custom_op.h"

#include <atomic>
#include <cstdlib>

namespace onnxfuse {
namespace {

std::atomic<const OrtApi*> g_api{nullptr};
std::atomic<const OrtApi24*> g_newer_api{nullptr};

}  // namespace

const OrtApi* shared_api() { return g_api.load(); }

void set_api(const OrtApi* api) { g_api.store(api); }

const OrtApi24* newer_api(const OrtApi* api) { return api == g_api.load() ? g_newer_api.load() : nullptr; }

void set_newer_api(const OrtApiBase& base) {
  constexpr unsigned version = 24;
  char* rest = nullptr;
  const unsigned long major = std::strtoul(base.GetVersionString(), &rest, 10);
  const unsigned long minor = *rest == '.' ? std::strtoul(rest + 1, nullptr, 10) : 0;
  // ORT writes a line to stderr when it is asked for a version that it does not have.
  const bool has = major > 1 || (major == 1 && minor >= version);
  g_newer_api.store(has ? reinterpret_cast<const OrtApi24*>(base.GetApi(version)) : nullptr);
}

bool read_config_entry(const OrtApi* api, const OrtSessionOptions* options, const char* key, std::string* value) {
  int has = 0;
  check(api->HasSessionConfigEntry(options, key, &has));
  if (has == 0) return false;
  *value = read_string([&](char* out, size_t* size) { return api->GetSessionConfigEntry(options, key, out, size); });
  return true;
}

}  // namespace onnxfuse
