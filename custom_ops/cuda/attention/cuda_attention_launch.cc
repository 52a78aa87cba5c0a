#include "cuda/attention/cuda_attention_launch.h"

#include <algorithm>

#include "figures/cuda.h"
#include "figures/cuda_attention.h"
#include "platform/integers.h"

namespace onnxfuse::cuda {
namespace {

// The rows of Q that share keys, of all heads of Q for one of K and V.
int64_t shared_rows(const Attention& node, const AttentionLayout& layout) {
  return layout.q.length * (node.heads / node.key_heads);
}

bool accepts(const AttentionKernel& kernel, const AttentionLayout& layout) {
  if (kernel.size == 0) return true;
  if (layout.q.size > kernel.size) return false;
  const auto is_whole = [&](const HeadsView& view) {
    const int64_t batch = view.batch == 1 ? 0 : view.per_batch;
    const int64_t steps[] = {view.size, view.begin, batch, view.per_head, view.per_row};
    return std::all_of(std::begin(steps), std::end(steps), [&](int64_t step) { return step % kernel.vector == 0; });
  };
  return is_whole(layout.q) && is_whole(layout.k) && is_whole(layout.v) && is_whole(layout.result);
}

// The blocks of a launch, or 0 if they are too many.
int64_t blocks_of(const AttentionKernel& kernel, const Attention& node, const AttentionLayout& layout) {
  const int64_t tiles =
      divide_up<int64_t>(shared_rows(node, layout), kernel.rows) * divide_up<int64_t>(layout.v.size, kernel.columns);
  const int64_t parts = node.key_heads * layout.result.batch;
  return tiles <= kMaxBlocks / parts ? tiles * parts : 0;
}

std::vector<Extent> extents_of(const AttentionRecipe& recipe, const Attention& node, const AttentionLayout& layout,
                               const std::vector<Shape>& inputs) {
  const size_t size = storage_size(recipe.type);
  std::vector<Extent> extents;
  for (size_t i = 0; i < inputs.size(); ++i) {
    int64_t count = 0;
    element_count(inputs[i], &count);
    // A row is read by other threads than write it: in place is never safe.
    extents.push_back({static_cast<size_t>(count) * (node.chosen && i == node.choice_input() ? 1 : size), 0});
  }
  extents.push_back({static_cast<size_t>(layout.count) * size, 0});
  return extents;
}

}  // namespace

std::shared_ptr<const AttentionCudaPlan> make_attention_cuda_plan(const Attention& node, const AttentionRecipe& recipe,
                                                                  const PlanKey& key, std::string* error) {
  auto plan = std::make_shared<AttentionCudaPlan>();
  plan->key = key;
  AttentionLayout& layout = plan->layout;
  if (!make_attention_layout(node, key, &layout, error)) return nullptr;
  if (layout.count == 0) return plan;
  const int64_t sizes[] = {layout.result.batch, layout.k.length, layout.q.size, layout.v.size, layout.mask_batch};
  const bool fits = std::all_of(std::begin(sizes), std::end(sizes), [](int64_t size) { return size <= INT32_MAX; });
  if (!fits || shared_rows(node, layout) > INT32_MAX) {
    *error = "the output of shape " + to_string(layout.output) + " has too many rows for one launch";
    return nullptr;
  }
  plan->extents = extents_of(recipe, node, layout, key.shapes);
  plan->parameters = pack_attention_parameters(node, layout);
  for (size_t k = 0; k < recipe.kernels.size(); ++k) {
    const AttentionKernel& kernel = recipe.kernels[k];
    const int64_t blocks = blocks_of(kernel, node, layout);
    if (blocks == 0 || !accepts(kernel, layout)) continue;
    const size_t bytes = kernel.vector * storage_size(recipe.type);
    plan->candidates.push_back({k, kernel.size == 0 ? 0 : bytes - 1, blocks});
  }
  if (plan->candidates.empty() || plan->candidates.back().misaligned != 0) {
    *error = "the output of shape " + to_string(layout.output) + " has too many rows for one launch";
    return nullptr;
  }
  return plan;
}

Splits attention_splits(const AttentionKernel& kernel, int64_t blocks, int64_t keys, int64_t multiprocessors) {
  const int64_t wanted =
      std::min({kWaves * multiprocessors / blocks, keys / kLeastAttentionKeys, int64_t{kernel.split}});
  return split_row(keys, kernel.keys, wanted);
}

AttentionLaunch::AttentionLaunch(const Attention& node, const AttentionRecipe& recipe, const AttentionCudaPlan& plan,
                                 const ContextKernels& kernels, const std::vector<CUdeviceptr>& addresses)
    : plan_(plan), kernels_(kernels), parameters_(plan.parameters) {
  const int64_t rows = shared_rows(node, plan.layout);
  const CUdeviceptr bits = addresses[0] | addresses[1] | addresses[2] | addresses.back();
  for (const AttentionCandidate& candidate : plan.candidates) {
    if ((bits & candidate.misaligned) != 0) continue;
    const AttentionKernel& kernel = recipe.kernels[candidate.kernel];
    if (kernel_ != nullptr) {
      // One for fewer rows, where the first has a block for too few multiprocessors, or for more rows than there are.
      const bool smaller = kernel.vector == kernel_->vector && kernel.size == kernel_->size && kernel.rows < kernel_->rows;
      if (!smaller || (candidate_->blocks >= kernels.multiprocessors && rows > kernel.rows)) continue;
    }
    candidate_ = &candidate;
    kernel_ = &kernel;
  }
  splits_ = attention_splits(*kernel_, candidate_->blocks, plan.layout.k.length, kernels.multiprocessors);
  parameters_.splits = static_cast<int32_t>(splits_.splits);
  parameters_.chunk = static_cast<int32_t>(splits_.chunk);
  std::copy_n(addresses.begin(), 3, parameters_.tensors.begin());
  parameters_.tensors[3] = node.masked ? addresses[3] : 0;
  parameters_.tensors[4] = node.chosen ? addresses[node.choice_input()] : 0;
  parameters_.tensors[5] = addresses.back();
}

size_t AttentionLaunch::workspace_bytes() const {
  if (splits_.splits == 1) return 0;
  const int64_t rows = plan_.layout.count / plan_.layout.v.size;
  return sizeof(float) * static_cast<size_t>(splits_.splits * (plan_.layout.count + kAttentionState * rows));
}

void AttentionLaunch::operator()(const Driver& driver, CUdeviceptr workspace, CUstream stream) const {
  AttentionParameters parameters = parameters_;
  parameters.workspace = workspace;
  const auto launch = [&](size_t function, const std::string& name, int64_t blocks, uint32_t block) {
    launch_kernel(driver, kernels_, {function, name, blocks, block, &parameters, sizeof(parameters)}, stream);
  };
  launch(kernel_->function, kernel_->name, candidate_->blocks * splits_.splits, kernel_->block);
  if (splits_.splits == 1) return;
  launch(kernel_->function + 1, kernel_->sum_name(), plan_.layout.count / plan_.layout.v.size, kAttentionSumBlock);
}

}  // namespace onnxfuse::cuda
