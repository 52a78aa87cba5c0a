#include "cuda/launch/cuda_launch.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "cuda/launch/cuda_access.h"
#include "cuda/launch/cuda_parameters.h"
#include "cuda/launch/cuda_recipe_text.h"
#include "cuda/launch/cuda_tiles.h"
#include "figures/cuda.h"

namespace onnxfuse::cuda {
namespace {

// 32-bit indices must not overflow, nor must those of the threads of the last block that have no element.
bool fits_32_bits(const RecipeKernel& kernel, const IterationSpace& space) {
  if (space.elements > kMaxCount32) return false;
  for (size_t k = 0; k < kernel.access.size(); ++k) {
    if (kernel.access[k] == 'p' && space.operands[k].access == 'p') {
      int64_t reach = 0;
      if (__builtin_mul_overflow(space.elements / space.operands[k].inner + 1, space.operands[k].extent, &reach)) return false;
      if (reach >= kLimit32) return false;
    }
    if (kernel.tile == 0 && kernel.access[k] != 'g' && kernel.access[k] != 'w') continue;
    const std::vector<int64_t>& strides = space.operands[k].strides;
    int64_t reach = 0;
    for (size_t d = 0; d < strides.size(); ++d) {
      int64_t own = 0;
      if (__builtin_mul_overflow(std::abs(strides[d]), space.dims[d] - 1, &own)) return false;
      if (__builtin_add_overflow(reach, own, &reach)) return false;
    }
    if (reach >= kLimit32) return false;
  }
  return true;
}

bool make_candidate(const RecipeKernel& kernel, const IterationSpace& space, LaunchCandidate* candidate) {
  if (kernel.index == 32 && !fits_32_bits(kernel, space)) return false;
  std::vector<Indexing> indexing(space.operands.size());
  Tiles tiles;
  if (kernel.tile != 0 && !tile_space(kernel, space, &tiles, &indexing)) return false;
  candidate->misaligned.assign(space.operands.size(), 0);
  for (size_t k = 0; k < space.operands.size(); ++k) {
    const Operand& operand = space.operands[k];
    if (kernel.tile == 0 && !accepts(kernel.access[k], kernel.vector, operand, space, &indexing[k])) return false;
    if (kernel.vector > 1 && indexing[k].contiguous) {
      candidate->misaligned[k] = std::min(kernel.vector * operand.element_size, kWidestAccess) - 1;
    }
  }
  candidate->parameters = pack_parameters(kernel, space, indexing, tiles).block;
  const int64_t per_block = int64_t{kernel.block} * kernel.vector;
  const int64_t of_groups = space.elements / per_block + (space.elements % per_block != 0 ? 1 : 0);
  candidate->blocks = kernel.tile != 0 ? tiles.blocks : of_groups;
  return candidate->blocks <= kMaxBlocks;
}

std::vector<Extent> extents_of(const IterationSpace& space, const std::vector<Shape>& inputs) {
  std::vector<Extent> extents;
  for (size_t k = 0; k < space.operands.size(); ++k) {
    const Operand& operand = space.operands[k];
    int64_t count = 0;
    element_count(k < inputs.size() ? inputs[k] : space.output_shapes[k - inputs.size()], &count);
    const bool whole = (operand.access == 'l' || space.elements == 1) && operand.offset == 0;
    extents.push_back({static_cast<size_t>(count) * operand.element_size, whole ? operand.element_size : 0});
  }
  return extents;
}

bool needs_alignment(const LaunchCandidate& candidate) {
  const auto& bits = candidate.misaligned;
  return std::any_of(bits.begin(), bits.end(), [](uintptr_t of_operand) { return of_operand != 0; });
}

}  // namespace

std::shared_ptr<const LaunchPlan> make_launch_plan(const Program& program, const Recipe& recipe, const PlanKey& key,
                                                   std::string* error, const OutputPart* place) {
  IterationSpace space;
  if (!make_iteration_space(program, key.shapes, &space, error)) return nullptr;
  if (place != nullptr && space.elements != 0 && !place_output(*place, &space, error)) return nullptr;
  auto plan = std::make_shared<LaunchPlan>();
  plan->key = key;
  plan->elements = space.elements;
  if (space.elements == 0) {
    plan->writes_without_elements =
        std::any_of(space.output_shapes.begin(), space.output_shapes.end(), [](const Shape& shape) {
          int64_t count = 0;
          return element_count(shape, &count) && count > 0;
        });
  } else {
    plan->extents = extents_of(space, key.shapes);
    for (const Operand& operand : space.operands) {
      plan->offsets.push_back(static_cast<CUdeviceptr>(operand.offset) * operand.element_size);
    }
    for (size_t k = 0; k < recipe.kernels.size(); ++k) {
      LaunchCandidate candidate;
      candidate.kernel = k;
      if (!make_candidate(recipe.kernels[k], space, &candidate)) continue;
      plan->candidates.push_back(std::move(candidate));
      if (!needs_alignment(plan->candidates.back())) break;
    }
    if (plan->candidates.empty() || needs_alignment(plan->candidates.back())) {
      *error = std::to_string(space.elements) + " elements are too many for one launch";
      return nullptr;
    }
  }
  plan->output_shapes = std::move(space.output_shapes);
  return plan;
}

const LaunchCandidate& choose(const LaunchPlan& plan, const std::vector<CUdeviceptr>& operands) {
  for (const LaunchCandidate& candidate : plan.candidates) {
    uintptr_t wrong = 0;
    for (size_t k = 0; k < operands.size(); ++k) wrong |= operands[k] & candidate.misaligned[k];
    if (wrong == 0) return candidate;
  }
  return plan.candidates.back();
}

void launch_part(const Driver& driver, const Recipe& recipe, size_t first, const ContextKernels& kernels,
                 const LaunchPlan& plan, const std::vector<CUdeviceptr>& operands, CUstream stream) {
  const LaunchCandidate& candidate = choose(plan, operands);
  const RecipeKernel& kernel = recipe.kernels[candidate.kernel];
  alignas(16) unsigned char parameters[kMaxParameterBytes];
  std::memcpy(parameters, candidate.parameters.data(), candidate.parameters.size());
  std::memcpy(parameters, operands.data(), operands.size() * sizeof(CUdeviceptr));
  const size_t bytes = candidate.parameters.size();
  launch_kernel(driver, kernels,
                {first + candidate.kernel, kernel.name, candidate.blocks, kernel.block, parameters, bytes}, stream);
}

}  // namespace onnxfuse::cuda
