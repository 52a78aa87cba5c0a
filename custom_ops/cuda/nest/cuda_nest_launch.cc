#include "cuda/nest/cuda_nest_launch.h"

#include <algorithm>
#include <cstring>

#include "cuda/launch/cuda_recipe_text.h"
#include "cuda/nest/cuda_nest_layout.h"
#include "cuda/nest/cuda_nest_parameters.h"
#include "figures/cuda.h"
#include "figures/cuda_nest.h"
#include "platform/integers.h"

namespace onnxfuse::cuda {
namespace {

bool any_address(const NestCandidate& candidate) {
  const auto& bits = candidate.misaligned;
  return std::all_of(bits.begin(), bits.end(), [](uintptr_t of_tensor) { return of_tensor == 0; });
}

}  // namespace

std::shared_ptr<const NestPlan> make_nest_plan(const Program& program, const NestRecipe& recipe, const PlanKey& key,
                                               std::string* error) {
  NestLayout layout;
  if (!make_nest_layout(program, key.shapes, &layout, error)) return nullptr;
  auto plan = std::make_shared<NestPlan>();
  plan->key = key;
  plan->rows = layout.rows;
  plan->length = layout.length;
  const auto is_reduction = [](const Value& value) { return value.kind == Value::Kind::Reduction; };
  plan->reductions =
      static_cast<size_t>(std::count_if(program.values.begin(), program.values.end(), is_reduction));
  const NestOperands counts = nest_operands(program);
  if (layout.rows == 0) {
    for (const NestOperand& operand : layout.operands) {
      plan->writes_without_rows = plan->writes_without_rows || (operand.is_output && operand.bytes != 0);
    }
  } else {
    for (const NestOperand& operand : layout.operands) {
      // A row is read by other threads than write it, and in several passes: in place is never safe.
      if (operand.element_bits != 0) plan->extents.push_back({operand.bytes, 0});
    }
    for (size_t k = 0; k < recipe.kernels.size(); ++k) {
      const NestKernel& kernel = recipe.kernels[k];
      NestCandidate candidate;
      if (!accepts(kernel, layout, &candidate.misaligned)) continue;
      candidate.kernel = k;
      candidate.tiles = divide_up<int64_t>(layout.rows / kernel.tile, kernel.rows_of_block());
      if (candidate.tiles > kMaxBlocks) continue;
      candidate.parameters = pack_nest_parameters(kernel, counts, layout);
      candidate.splits_at = nest_parameters(kernel, counts).splits;
      plan->candidates.push_back(std::move(candidate));
      if (kernel.steps == 0 && any_address(plan->candidates.back())) break;
    }
    const bool ends = !plan->candidates.empty() && any_address(plan->candidates.back()) &&
                      recipe.kernels[plan->candidates.back().kernel].steps == 0;
    if (!ends) {
      *error = std::to_string(layout.rows) + " rows are too many for one launch";
      return nullptr;
    }
  }
  plan->output_shapes = std::move(layout.output_shapes);
  return plan;
}

Splits nest_splits(const NestKernel& kernel, int64_t tiles, int64_t length, int64_t multiprocessors) {
  if (kernel.steps == 0) return {1, length};
  const int64_t group = kernel.group();
  const int64_t wanted =
      std::min({kWaves * multiprocessors / tiles, length / (kLeastNestGroups * group), kMaxNestSplits});
  return split_row(length, group, wanted);
}

NestLaunch::NestLaunch(const NestRecipe& recipe, const NestPlan& plan, const ContextKernels& kernels,
                       const std::vector<CUdeviceptr>& addresses)
    : plan_(plan), kernels_(kernels), addresses_(addresses) {
  choose(recipe);
}

// The first candidate whose demands on alignment the tensors meet, and which is worth it on this device.
void NestLaunch::choose(const NestRecipe& recipe) {
  for (const NestCandidate& candidate : plan_.candidates) {
    candidate_ = &candidate;
    kernel_ = &recipe.kernels[candidate.kernel];
    splits_ = nest_splits(*kernel_, candidate.tiles, plan_.length, kernels_.multiprocessors);
    uintptr_t wrong = 0;
    for (size_t a = 0; a < addresses_.size(); ++a) wrong |= addresses_[a] & candidate.misaligned[a];
    if (wrong == 0 && (kernel_->steps == 0 || splits_.splits > 1)) return;
  }
}

size_t NestLaunch::workspace_bytes() const {
  if (splits_.splits == 1) return 0;
  return kNestPartBytes * plan_.reductions * static_cast<size_t>(splits_.splits * plan_.rows);
}

void NestLaunch::operator()(const Driver& driver, CUdeviceptr workspace, CUstream stream) const {
  const size_t tensors = addresses_.size();
  const size_t bytes = candidate_->parameters.size();
  alignas(16) unsigned char parameters[kMaxParameterBytes];
  std::memcpy(parameters, candidate_->parameters.data(), bytes);
  std::memcpy(parameters, addresses_.data(), tensors * sizeof(CUdeviceptr));
  std::memcpy(parameters + tensors * sizeof(CUdeviceptr), &workspace, sizeof(workspace));
  put_splits(*kernel_, splits_.splits, splits_.chunk, parameters + candidate_->splits_at);
  const int64_t blocks = candidate_->tiles * splits_.splits;
  for (size_t step = 0; step < (kernel_->steps == 0 ? 1 : kernel_->steps); ++step) {
    launch_kernel(driver, kernels_,
                  {kernel_->function + step, kernel_->name, blocks, kernel_->block, parameters, bytes}, stream);
  }
}

}  // namespace onnxfuse::cuda
