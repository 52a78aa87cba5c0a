#include "cuda/elementwise/cuda_node_launch.h"

#include <algorithm>
#include <cstring>

#include "cuda/launch/cuda_parameters.h"
#include "figures/cuda.h"
#include "program/program_shapes.h"

namespace onnxfuse::cuda {
namespace {

using Addresses = std::vector<CUdeviceptr>;

// The addresses of what each part reads and writes.
std::vector<Addresses> part_addresses(const NodePlan& plan, const Addresses& operands) {
  std::vector<Addresses> found(plan.parts.size());
  for (size_t p = 0; p < plan.parts.size(); ++p) {
    const LaunchPlan& part = *plan.parts[p];
    for (size_t k = 0; k < plan.operands[p].size(); ++k) {
      found[p].push_back(operands[plan.operands[p][k]] + (part.offsets.empty() ? 0 : part.offsets[k]));
    }
  }
  return found;
}

// How a part's plan has this kernel, if operands at these addresses meet its demands; else null.
const LaunchCandidate* accepted(const LaunchPlan& plan, size_t kernel, const Addresses& addresses) {
  for (const LaunchCandidate& candidate : plan.candidates) {
    if (candidate.kernel != kernel) continue;
    uintptr_t wrong = 0;
    for (size_t k = 0; k < addresses.size(); ++k) wrong |= addresses[k] & candidate.misaligned[k];
    return wrong == 0 ? &candidate : nullptr;
  }
  return nullptr;
}

struct JointLaunch {
  alignas(16) unsigned char parameters[kMaxParameterBytes] = {};
  size_t bytes = 0;
  int64_t blocks = 0;

  // False if the kernel does not take what a run has.
  bool prepare(const NodeRecipe& recipe, const JointKernel& joint, const NodePlan& plan,
               const std::vector<Addresses>& addresses) {
    bytes = plan.parts.size() * sizeof(uint32_t);
    blocks = 0;
    for (size_t p = 0; p < plan.parts.size(); ++p) {
      const LaunchPlan& part = *plan.parts[p];
      bytes = joint_offset(bytes);
      if (part.elements == 0) {  // its range is empty
        bytes += parameter_layout(recipe.parts[p].recipe.kernels[joint.members[p]]).block.size();
      } else {
        const LaunchCandidate* candidate = accepted(part, joint.members[p], addresses[p]);
        if (candidate == nullptr) return false;
        std::memcpy(parameters + bytes, candidate->parameters.data(), candidate->parameters.size());
        std::memcpy(parameters + bytes, addresses[p].data(), addresses[p].size() * sizeof(CUdeviceptr));
        bytes += candidate->parameters.size();
        blocks += candidate->blocks;
        if (blocks > kMaxBlocks) return false;
      }
      const auto end = static_cast<uint32_t>(blocks);
      std::memcpy(parameters + p * sizeof(end), &end, sizeof(end));
    }
    return true;
  }
};

// Of operands of which each element may be written by a thread that has not read it in the input's place.
std::vector<Extent> extents_of(const Program& program, const PlanKey& key, const std::vector<Shape>& outputs) {
  std::vector<Extent> extents;
  const auto add = [&](const Shape& shape, DType type) {
    int64_t count = 0;
    element_count(shape, &count);
    extents.push_back({static_cast<size_t>(count) * storage_size(type), 0});
  };
  for (size_t i = 0; i < program.input_count; ++i) add(key.shapes[i], program.values[i].type);
  for (size_t t = 0; t < outputs.size(); ++t) add(outputs[t], output_type(program, first_output(program, t)));
  return extents;
}

std::vector<size_t> tensors_of_outputs(const Program& program) {
  std::vector<size_t> tensors;
  for (size_t o = 0; o < program.outputs.size(); ++o) {
    const bool begins = program.appends.empty() || program.appends[o] == 0;
    tensors.push_back(o == 0 ? 0 : tensors.back() + (begins ? 1 : 0));
  }
  return tensors;
}

}  // namespace

std::shared_ptr<const NodePlan> make_node_plan(const Program& program, const NodeRecipe& recipe, const PlanKey& key,
                                               std::string* error) {
  std::vector<Shape> shapes;
  auto plan = std::make_shared<NodePlan>();
  plan->key = key;
  if (!resolve_shapes(program, key.shapes, &shapes, error)) return nullptr;
  std::vector<OutputPart> places;
  if (!resolve_outputs(program, shapes, &plan->output_shapes, error, &places)) return nullptr;
  const std::vector<size_t> tensors = tensors_of_outputs(program);
  for (const PartKernels& own : recipe.parts) {
    PlanKey part_key;
    std::vector<size_t> operands = own.part.inputs;
    for (const size_t input : operands) part_key.shapes.push_back(key.shapes[input]);
    for (const size_t output : own.part.outputs) operands.push_back(program.input_count + tensors[output]);
    const bool appended = is_appended(program, own.part.outputs[0]);
    const OutputPart* place = appended ? &places[own.part.outputs[0]] : nullptr;
    auto part = make_launch_plan(own.part.program, own.recipe, part_key, error, place);
    if (part == nullptr) return nullptr;
    plan->has_elements = plan->has_elements || part->elements != 0;
    plan->writes_without_elements = plan->writes_without_elements || part->writes_without_elements;
    plan->parts.push_back(std::move(part));
    plan->operands.push_back(std::move(operands));
  }
  if (!plan->has_elements) return plan;
  const bool whole = recipe.parts.size() == 1 && program.appends.empty();
  plan->extents = whole ? plan->parts[0]->extents : extents_of(program, key, plan->output_shapes);
  return plan;
}

void launch(const Driver& driver, const NodeRecipe& recipe, const ContextKernels& kernels, const NodePlan& plan,
            const std::vector<CUdeviceptr>& operands, CUstream stream) {
  const std::vector<Addresses> addresses = part_addresses(plan, operands);
  size_t number = recipe.parts.back().first + recipe.parts.back().recipe.kernels.size();
  for (const JointKernel& joint : recipe.joint) {
    JointLaunch all;
    if (all.prepare(recipe, joint, plan, addresses)) {
      const uint32_t block = recipe.parts[0].recipe.kernels[joint.members[0]].block;
      launch_kernel(driver, kernels, {number, joint.name, all.blocks, block, all.parameters, all.bytes}, stream);
      return;
    }
    ++number;
  }
  for (size_t p = 0; p < plan.parts.size(); ++p) {
    const PartKernels& part = recipe.parts[p];
    if (plan.parts[p]->elements == 0) continue;
    launch_part(driver, part.recipe, part.first, kernels, *plan.parts[p], addresses[p], stream);
  }
}

}  // namespace onnxfuse::cuda
