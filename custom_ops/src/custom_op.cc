#include "custom_op.h"

#include <atomic>

namespace onnxfuse {
namespace {

std::atomic<const OrtApi*> g_api{nullptr};

}  // namespace

const OrtApi* shared_api() { return g_api.load(); }

void set_api(const OrtApi* api) { g_api.store(api); }

}  // namespace onnxfuse
