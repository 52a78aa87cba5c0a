// The library's one entry point.
#include <initializer_list>
#include <vector>

#include "custom_op.h"
#include "fused_conv.h"
#include "fused_elementwise.h"
#include "ort_abi.h"
#include "ort_call.h"

namespace onnxfuse {
namespace {

using Operators = const std::vector<const OrtCustomOp*>& (*)();

// A domain serves every session of the process; ORT only refers to it, so it is never released.
struct Domain {
  OrtCustomOpDomain* domain = nullptr;
  OrtStatus* failure = nullptr;

  Domain(const OrtApi* api, std::initializer_list<Operators> operators) {
    failure = api->CreateCustomOpDomain("onnxfuse", &domain);
    for (const Operators list : operators) {
      for (const OrtCustomOp* op : list()) {
        if (failure == nullptr) failure = api->CustomOpDomain_Add(domain, op);
      }
    }
  }
};

const Domain& shared_domain(const OrtApi* api, bool with_conv) {
  static const Domain elementwise(api, {fused_elementwise});
  if (!with_conv) return elementwise;
  static const Domain all(api, {fused_elementwise, fused_conv});
  return all;
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
  return onnxfuse::guarded(api, ORT_FAIL, "onnxfuse: ", [&] {
    const bool with_conv = onnxfuse::fused_conv_is_of_use(api, options);
    const onnxfuse::Domain& domain = onnxfuse::shared_domain(api, with_conv);
    if (domain.failure != nullptr) throw onnxfuse::Error("the operators cannot be registered");
    onnxfuse::check(api->AddCustomOpDomain(options, domain.domain));
  });
}
