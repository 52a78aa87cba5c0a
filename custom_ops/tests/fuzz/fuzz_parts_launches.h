// What a node of several parts launches, taken down by a driver that does nothing, against its plan.
#ifndef ONNXFUSE_FUZZ_PARTS_LAUNCHES_H_
#define ONNXFUSE_FUZZ_PARTS_LAUNCHES_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/driver/cuda_driver.h"
#include "cuda/elementwise/cuda_node_launch.h"
#include "cuda/elementwise/cuda_node_recipe.h"
#include "cuda/launch/cuda_launch.h"
#include "cuda/launch/cuda_parameters.h"
#include "tests/fuzz/fuzz_random.h"

namespace fuzz {

using namespace onnxfuse;

struct Launched {
  size_t number;
  uint64_t blocks;
  std::string parameters;
};

inline std::vector<Launched> g_launched;

// A driver whose functions have their place among a node's, from 1, for addresses.
inline cuda::Driver listening_driver() {
  cuda::Driver driver;
  driver.cuCtxGetCurrent = [](cuda::CUcontext* context) { return *context = nullptr, cuda::CUDA_SUCCESS; };
  driver.cuCtxPushCurrent = [](cuda::CUcontext) { return cuda::CUDA_SUCCESS; };
  driver.cuCtxPopCurrent = [](cuda::CUcontext*) { return cuda::CUDA_SUCCESS; };
  driver.cuLaunchKernel = [](cuda::CUfunction function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned,
                             unsigned, unsigned, cuda::CUstream, void**, void** extra) {
    expect(threads == 64, "a block of another size");
    const std::string parameters(static_cast<const char*>(extra[1]), *static_cast<const size_t*>(extra[3]));
    g_launched.push_back({reinterpret_cast<size_t>(function) - 1, blocks, parameters});
    return cuda::CUDA_SUCCESS;
  };
  return driver;
}

// That this kernel of a part has these parameters, and pointers that are aligned as it asks.  Returns its blocks.
inline uint64_t check_launched(const cuda::LaunchPlan& plan, size_t kernel, const std::string& parameters,
                               const std::vector<uint64_t>& addresses) {
  for (const cuda::LaunchCandidate& candidate : plan.candidates) {
    if (candidate.kernel != kernel) continue;
    std::string wanted(candidate.parameters.begin(), candidate.parameters.end());
    for (size_t k = 0; k < addresses.size(); ++k) {
      const uint64_t first = addresses[k] + plan.offsets[k];
      expect((first & candidate.misaligned[k]) == 0, "a kernel whose demands on alignment are not met");
      std::memcpy(wanted.data() + k * sizeof(first), &first, sizeof(first));
    }
    expect(parameters == wanted, "other parameters than the plan's");
    return static_cast<uint64_t>(candidate.blocks);
  }
  expect(false, "a kernel that does not take these shapes");
  return 0;
}

inline void check_launches(const cuda::NodeRecipe& recipe, const cuda::NodePlan& plan,
                           const std::vector<std::vector<uint64_t>>& addresses) {
  const std::vector<cuda::KernelSignature> kernels = cuda::signatures(recipe);
  const size_t alone = kernels.size() - recipe.joint.size();
  if (!g_launched.empty() && g_launched[0].number >= alone) {
    const Launched& all = g_launched[0];
    const cuda::JointKernel& joint = recipe.joint[all.number - alone];
    const cuda::KernelSignature& signature = kernels[all.number];
    expect(g_launched.size() == 1, "parts are launched twice");
    expect(all.parameters.size() >= signature.parameters.back().offset + signature.parameters.back().bytes, "too few bytes");
    uint32_t before = 0;
    size_t parameter = plan.parts.size();
    for (size_t p = 0; p < plan.parts.size(); ++p) {
      uint32_t end = 0;
      std::memcpy(&end, all.parameters.data() + p * sizeof(end), sizeof(end));
      const cuda::RecipeKernel& member = recipe.parts[p].recipe.kernels[joint.members[p]];
      const cuda::Parameters own = cuda::parameter_layout(member);
      const size_t begin = signature.parameters[parameter].offset;
      expect(begin % sizeof(uint64_t) == 0, "a part's parameters are not aligned");
      const std::string parameters = all.parameters.substr(begin, own.block.size());
      const bool empty = plan.parts[p]->elements == 0;
      const uint64_t blocks = empty ? 0 : check_launched(*plan.parts[p], joint.members[p], parameters, addresses[p]);
      expect(end - before == blocks, "another range of blocks");
      before = end;
      parameter += own.each.size();
    }
    expect(parameter == signature.parameters.size() && before == all.blocks, "not the blocks of all parts");
    return;
  }
  size_t next = 0;
  for (size_t p = 0; p < plan.parts.size(); ++p) {
    if (plan.parts[p]->elements == 0) continue;
    expect(next < g_launched.size(), "a part is not launched");
    const Launched& own = g_launched[next++];
    const size_t kernel = own.number - recipe.parts[p].first;
    expect(kernel < recipe.parts[p].recipe.kernels.size(), "a kernel of another part");
    expect(check_launched(*plan.parts[p], kernel, own.parameters, addresses[p]) == own.blocks, "not its blocks");
  }
  expect(next == g_launched.size(), "more is launched than there are parts");
}

}  // namespace fuzz

#endif  // ONNXFUSE_FUZZ_PARTS_LAUNCHES_H_
