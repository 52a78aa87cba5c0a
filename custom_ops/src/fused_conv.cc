#include "fused_conv.h"

#include <cstring>
#include <string>

#include "cuda_driver.h"
#include "cuda_fused_conv_node.h"
#include "custom_op.h"
#include "dtype.h"

namespace onnxfuse {
namespace {

bool has_cuda_provider(const OrtApi* api) {
  char** names = nullptr;
  int count = 0;
  check(api->GetAvailableProviders(&names, &count));
  bool found = false;
  for (int i = 0; i < count; ++i) found = found || std::strcmp(names[i], cuda_provider(nullptr)) == 0;
  check(api->ReleaseAvailableProviders(names, count));
  return found;
}

}  // namespace

// On the CPU provider it is registered only because ORT, which may have both, would refuse a node that some session runs
// without CUDA: it does not fall back to the function of a node whose operator is known.
const std::vector<const OrtCustomOp*>& fused_conv() {
  static const std::vector<NamedOp> ops = [] {
    std::vector<NamedOp> made;
    for (const char* name : {ONNXFUSE_FUSED_CONV_OPS}) {
      made.push_back(make_op<FusedConvNode>(name, cpu_provider));
      made.push_back(make_op<CudaFusedConvNode>(name, cuda_provider));
    }
    return made;
  }();
  static const std::vector<const OrtCustomOp*> pointers = [] {
    std::vector<const OrtCustomOp*> found;
    for (const NamedOp& op : ops) found.push_back(&op);
    return found;
  }();
  return pointers;
}

bool fused_conv_is_of_use(const OrtApi* api, const OrtSessionOptions* options) {
  static const bool possible = has_cuda_provider(api) && cuda::driver_exists();
  std::string no_cuda;
  return possible && !(read_config_entry(api, options, kNoCudaKey, &no_cuda) && no_cuda == "1");
}

}  // namespace onnxfuse
