#include "custom_op.h"

#include <atomic>

namespace onnxfuse {
namespace {

std::atomic<const OrtApi*> g_api{nullptr};

}  // namespace

const OrtApi* shared_api() { return g_api.load(); }

void set_api(const OrtApi* api) { g_api.store(api); }

bool read_config_entry(const OrtApi* api, const OrtSessionOptions* options, const char* key, std::string* value) {
  int has = 0;
  check(api->HasSessionConfigEntry(options, key, &has));
  if (has == 0) return false;
  *value = read_string([&](char* out, size_t* size) { return api->GetSessionConfigEntry(options, key, out, size); });
  return true;
}

}  // namespace onnxfuse
