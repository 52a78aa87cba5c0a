#include "cuda/conv/cuda_conv_launch.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cuda/conv/cuda_conv_layout.h"
#include "cuda/conv/cuda_conv_parameters.h"
#include "cuda/launch/cuda_recipe_text.h"
#include "figures/cuda.h"
#include "figures/cuda_conv.h"

namespace onnxfuse::cuda {
namespace {


template <class Word>
void write(unsigned char* parameters, size_t offset, int64_t number) {
  const auto word = static_cast<Word>(number);
  std::memcpy(parameters + offset, &word, sizeof(word));
}

// None is read and written by the same threads, or, as an operand of the epilogue, so rarely that a copy will do.
std::vector<Extent> extents_of(const ConvLayout& layout, const std::vector<Shape>& inputs) {
  std::vector<Extent> extents;
  for (size_t i = 0; i < inputs.size(); ++i) {
    int64_t count = 0;
    element_count(inputs[i], &count);
    const size_t size = i < 2 ? layout.element_size : layout.operands[i - 2].element_size;
    extents.push_back({static_cast<size_t>(count) * size, 0});
  }
  for (const size_t size : layout.output_sizes) extents.push_back({static_cast<size_t>(layout.count) * size, 0});
  return extents;
}

}  // namespace

std::shared_ptr<const ConvPlan> make_conv_plan(const ConvNode& node, const ConvRecipe& recipe, const PlanKey& key,
                                               std::string* error) {
  ConvShapes shapes;
  if (!resolve_conv_node(node, key.shapes, &shapes, error)) return nullptr;
  auto plan = std::make_shared<ConvPlan>();
  plan->key = key;
  plan->output = shapes.geometry.output;
  element_count(plan->output, &plan->count);
  if (plan->count == 0) return plan;
  const ConvLayout layout = make_conv_layout(node, shapes);
  plan->extents = extents_of(layout, key.shapes);
  for (size_t k = 0; k < recipe.kernels.size(); ++k) {
    const ConvKernel& kernel = recipe.kernels[k];
    ConvCandidate candidate;
    if (!accepts(kernel, layout, &candidate.misaligned)) continue;
    candidate.kernel = k;
    candidate.parameters = pack_conv_parameters(kernel, layout);
    candidate.blocks = conv_blocks(kernel, layout);
    plan->candidates.push_back(std::move(candidate));
    const auto& bits = plan->candidates.back().misaligned;
    if (std::all_of(bits.begin(), bits.end(), [](uintptr_t of_tensor) { return of_tensor == 0; })) break;
  }
  return plan;
}

const ConvCandidate& choose(const ConvPlan& plan, const std::vector<CUdeviceptr>& addresses) {
  for (const ConvCandidate& candidate : plan.candidates) {
    uintptr_t wrong = 0;
    for (size_t a = 0; a < addresses.size(); ++a) wrong |= addresses[a] & candidate.misaligned[a];
    if (wrong == 0) return candidate;
  }
  return plan.candidates.back();
}

int64_t conv_splits(const ConvKernel& kernel, int64_t blocks, int64_t multiprocessors) {
  if (kernel.split == 1) return 1;
  return std::max<int64_t>(1, std::min<int64_t>(kernel.split, 2 * multiprocessors / blocks));
}

ConvLaunch::ConvLaunch(const ConvRecipe& recipe, const ConvPlan& plan, const ContextKernels& kernels,
                       std::vector<CUdeviceptr> addresses)
    : plan_(plan),
      kernels_(kernels),
      addresses_(std::move(addresses)),
      candidate_(choose(plan, addresses_)),
      kernel_(recipe.kernels[candidate_.kernel]),
      splits_(conv_splits(kernel_, candidate_.blocks, kernels.multiprocessors)) {}

size_t ConvLaunch::workspace_bytes() const {
  return splits_ == 1 ? 0 : static_cast<size_t>(splits_ * plan_.count) * sizeof(float);
}

void ConvLaunch::operator()(const Driver& driver, CUdeviceptr workspace, CUstream stream) const {
  const ConvOperandCounts counts{0, kernel_.access.size(), addresses_.size() - 2 - kernel_.access.size()};
  const ConvParameters places = conv_parameters(kernel_, counts);
  alignas(16) unsigned char parameters[kMaxParameterBytes];
  std::memcpy(parameters, candidate_.parameters.data(), places.bytes);
  std::memcpy(parameters, addresses_.data(), addresses_.size() * sizeof(CUdeviceptr));
  std::memcpy(parameters + places.workspace, &workspace, sizeof(workspace));
  const int64_t most = kConvBlocks * kernels_.multiprocessors;
  int64_t blocks = candidate_.blocks * splits_;
  if (kernel_.family == ConvFamily::Any) blocks = std::min(blocks, most);
  if (kernel_.index == 32) {
    write<uint32_t>(parameters, places.splits, splits_);
  } else {
    write<uint64_t>(parameters, places.splits, splits_);
  }
  launch_kernel(driver, kernels_, {kernel_.function, kernel_.name, blocks, kernel_.block, parameters, places.bytes},
                stream);
  if (splits_ == 1) return;
  const int64_t per_block = int64_t{kConvSumBlock} * kernel_.vector;
  const int64_t sum_blocks = plan_.count / per_block + (plan_.count % per_block != 0 ? 1 : 0);
  launch_kernel(driver, kernels_,
                {kernel_.sum_function, kernel_.sum_name(), std::min(sum_blocks, most), kConvSumBlock, parameters,
                 places.bytes},
                stream);
}

}  // namespace onnxfuse::cuda
