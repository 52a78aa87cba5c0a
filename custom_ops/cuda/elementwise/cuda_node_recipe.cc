#include "cuda/elementwise/cuda_node_recipe.h"

#include <algorithm>
#include <utility>

#include "cuda/launch/cuda_parameters.h"
#include "cuda/launch/cuda_recipe_text.h"
#include "figures/cuda.h"
#include "figures/cuda_elementwise.h"
#include "figures/programs.h"
#include "platform/integers.h"
#include "program/words.h"

namespace onnxfuse::cuda {
namespace {

constexpr size_t kMostWords = kMaxParts + 2;

class Parser {
 public:
  Parser(const Program& program, NodeRecipe* recipe)
      : program_(program), recipe_(*recipe), taken_(program.outputs.size(), false) {}

  // What is wrong with a line; nothing if it is well.
  std::string add(std::string_view line) {
    if (line.substr(0, 5) == "part ") return add_part(line.substr(5));
    if (line.substr(0, 6) == "joint ") return add_joint(line);
    if (recipe_.parts.empty() || !recipe_.joint.empty()) return "a kernel of no part";
    PartKernels& last = recipe_.parts.back();
    if (last.recipe.kernels.size() == kMaxKernels) return "more than 16 kernels of a part";
    RecipeKernel kernel;
    const Part& part = last.part;
    const char* problem = parse_recipe_kernel(line, part.inputs.size(), part.outputs.size(), &kernel);
    if (problem != nullptr) return problem;
    last.recipe.kernels.push_back(std::move(kernel));
    ++kernels_;
    return {};
  }

  std::string finish() const {
    if (recipe_.parts.empty()) return "there is no part";
    if (std::find(taken_.begin(), taken_.end(), false) != taken_.end()) return "an output is in no part";
    return end_of_part();
  }

 private:
  std::string add_part(std::string_view list) {
    if (!recipe_.joint.empty()) return "a part behind a joint kernel";
    if (recipe_.parts.size() == kMaxParts) return "more than 16 parts";
    if (std::string problem = end_of_part(); !problem.empty()) return problem;
    std::vector<size_t> outputs;
    while (true) {
      const size_t end = std::min(list.find(','), list.size());
      uint32_t output = 0;
      const bool known = parse_number(list.substr(0, end), static_cast<uint32_t>(kMaxOutputs), &output) &&
                         output < taken_.size();
      if (!known || taken_[output]) return "not an output of the program, or one of another part";
      taken_[output] = true;
      outputs.push_back(output);
      if (end == list.size()) break;
      list.remove_prefix(end + 1);
    }
    const auto appended = [&](size_t output) { return is_appended(program_, output); };
    if (outputs.size() > 1 && std::any_of(outputs.begin(), outputs.end(), appended)) {
      return "a part of a tensor beside another output";
    }
    PartKernels part;
    part.first = kernels_;
    std::string error;
    if (!take_part(program_, outputs, &part.part, &error)) return error;
    recipe_.parts.push_back(std::move(part));
    return {};
  }

  std::string end_of_part() const {
    if (recipe_.parts.empty()) return {};
    const PartKernels& part = recipe_.parts.back();
    if (part.recipe.kernels.empty()) return "a part without a kernel";
    const RecipeKernel& last = part.recipe.kernels.back();
    const size_t inputs = part.part.inputs.size();
    const bool appended = is_appended(program_, part.part.outputs[0]);
    const bool general = last.vector == 1 && last.index == 64 &&
                         consists_of(std::string_view(last.access).substr(0, inputs), "g") &&
                         consists_of(std::string_view(last.access).substr(inputs), appended ? "p" : "w");
    return general ? std::string{} : "the last kernel of a part does not take tensors of every shape";
  }

  std::string add_joint(std::string_view line) {
    if (recipe_.joint.empty()) {
      if (std::string problem = finish(); !problem.empty()) return problem;
    } else if (recipe_.joint.size() == kMaxKernels) {
      return "more than 16 joint kernels";
    }
    std::string_view words[kMostWords];
    const size_t count = split(line, words, kMostWords);
    if (count != recipe_.parts.size() + 2) return "expected 'joint <name>' and one kernel of each part";
    if (!is_identifier(words[1], kMaxKernelName)) return "the kernel's name is not an identifier";
    JointKernel joint;
    joint.name = words[1];
    size_t bytes = recipe_.parts.size() * sizeof(uint32_t);
    uint32_t block = 0;
    for (size_t p = 0; p < recipe_.parts.size(); ++p) {
      const PartKernels& part = recipe_.parts[p];
      uint32_t number = 0;
      const bool known = parse_number(words[p + 2], static_cast<uint32_t>(kMaxPartLines), &number) &&
                         number >= part.first && number - part.first < part.recipe.kernels.size();
      if (!known) return "expected 'joint <name>' and one kernel of each part";
      joint.members.push_back(number - part.first);
      const RecipeKernel& kernel = part.recipe.kernels[joint.members.back()];
      if (p != 0 && kernel.block != block) return "the parts' blocks are of different sizes";
      block = kernel.block;
      bytes = joint_offset(bytes) + parameter_layout(kernel).block.size();
    }
    if (bytes > kMaxParameterBytes) return "the parameters are more than 4096 bytes";
    recipe_.joint.push_back(std::move(joint));
    return {};
  }

  const Program& program_;
  NodeRecipe& recipe_;
  std::vector<bool> taken_;
  size_t kernels_ = 0;
};

}  // namespace

size_t joint_offset(size_t bytes) { return round_up(bytes, sizeof(uint64_t)); }

bool parse_node_recipe(std::string_view text, const Program& program, NodeRecipe* recipe, std::string* error) {
  *recipe = NodeRecipe{};
  constexpr std::string_view kHeader = "onnxfuse-cuda 3";
  if (text.substr(0, kHeader.size()) != kHeader) {
    if (!program.appends.empty()) {
      *error = "a recipe without parts is for a program whose outputs are whole tensors";
      return false;
    }
    recipe->parts.resize(1);
    recipe->parts[0].part = whole_part(program);
    return parse_recipe(text, program.input_count, program.outputs.size(), &recipe->parts[0].recipe, error);
  }
  Parser parser(program, recipe);
  std::string source;
  std::string problem;  // of the last line
  const auto add = [&](std::string_view line) {
    problem = parser.add(line);
    return problem.empty() ? nullptr : problem.c_str();
  };
  const auto finish = [&] {
    problem = parser.finish();
    return problem.empty() ? nullptr : problem.c_str();
  };
  return read_recipe(text, std::string(kHeader), &source, add, finish, error, kMaxPartLines);
}

std::vector<KernelSignature> signatures(const NodeRecipe& recipe) {
  std::vector<KernelSignature> kernels;
  for (const PartKernels& part : recipe.parts) {
    for (KernelSignature& kernel : signatures(part.recipe)) kernels.push_back(std::move(kernel));
  }
  for (const JointKernel& joint : recipe.joint) {
    KernelSignature kernel{joint.name, 0, {}};
    size_t bytes = 0;
    for (; bytes < recipe.parts.size() * sizeof(uint32_t); bytes += sizeof(uint32_t)) {
      kernel.parameters.push_back({bytes, sizeof(uint32_t)});
    }
    for (size_t p = 0; p < recipe.parts.size(); ++p) {
      const RecipeKernel& member = recipe.parts[p].recipe.kernels[joint.members[p]];
      kernel.block = member.block;
      const Parameters own = parameter_layout(member);
      bytes = joint_offset(bytes);
      for (const Parameter& parameter : own.each) kernel.parameters.push_back({bytes + parameter.offset, parameter.bytes});
      bytes += own.block.size();
    }
    kernels.push_back(std::move(kernel));
  }
  return kernels;
}

}  // namespace onnxfuse::cuda
