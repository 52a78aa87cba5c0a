// The library's one entry point.
#include "custom_op.h"
#include "fused_elementwise.h"
#include "ort_abi.h"

namespace onnxfuse {
namespace {

// One domain serves every session of the process; ORT only refers to it, so it is never released.
OrtStatus* shared_domain(const OrtApi* api, OrtCustomOpDomain** out) {
  static OrtCustomOpDomain* domain = nullptr;
  static OrtStatus* const failure = [api] {
    OrtStatus* status = api->CreateCustomOpDomain("onnxfuse", &domain);
    for (const OrtCustomOp* op : fused_elementwise()) {
      if (status == nullptr) status = api->CustomOpDomain_Add(domain, op);
    }
    return status;
  }();
  *out = domain;
  return failure == nullptr ? nullptr : api->CreateStatus(ORT_FAIL, "onnxfuse: the operators cannot be registered");
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
  onnxfuse::set_api(api);
  OrtCustomOpDomain* domain = nullptr;
  if (OrtStatus* status = onnxfuse::shared_domain(api, &domain)) return status;
  return api->AddCustomOpDomain(options, domain);
}
