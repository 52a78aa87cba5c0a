// Random nodes whose Program is in several parts, maps of shapes of their own, some of which make one tensor; and what such a
// node launches, taken down by a driver that does nothing, against its plan.
#ifndef ONNXFUSE_FUZZ_PARTS_H_
#define ONNXFUSE_FUZZ_PARTS_H_

#include <algorithm>
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
#include "program/shape.h"
#include "tests/fuzz/fuzz_random.h"

namespace fuzz {

// An output of the Program, computed by a part of its own of two inputs.
struct RandomPart {
  size_t first_input = 0;
  onnxfuse::Shape shape;
  size_t tensor = 0;
  int axis = 0;        // of the tensor, counted from the back, along which it has several parts; 0 if it has one
  int64_t before = 0;  // elements along that axis that earlier parts have
};

struct RandomParts {
  std::string program;
  std::string recipe;
  std::vector<onnxfuse::Shape> inputs;
  std::vector<onnxfuse::Shape> tensors;
  std::vector<RandomPart> parts;  // by their outputs
  std::vector<size_t> order;      // the outputs in the order of the recipe's parts
};

// What broadcasts to `shape`.
inline onnxfuse::Shape random_operand(const onnxfuse::Shape& shape) {
  onnxfuse::Shape own;
  own.rank = below(2) == 0 ? shape.rank : static_cast<int>(below(static_cast<size_t>(shape.rank) + 1));
  for (int d = 0; d < own.rank; ++d) {
    own.dims[static_cast<size_t>(d)] = below(3) == 0 ? 1 : shape.dims[static_cast<size_t>(d + shape.rank - own.rank)];
  }
  return own;
}

inline void add_random_tensor(RandomParts* node) {
  static constexpr int64_t kSizes[] = {1, 2, 3, 4, 8, 16, 20, 48, 0, 1 << 12, 1 << 20, int64_t{3} << 30};
  onnxfuse::Shape tensor;
  tensor.rank = 1 + static_cast<int>(below(below(8) == 0 ? 16 : 4));
  for (int d = 0; d < tensor.rank; ++d) tensor.dims[static_cast<size_t>(d)] = kSizes[below(below(6) == 0 ? 12 : 8)];
  const size_t parts = 1 + below(3);
  const auto axis = parts == 1 ? 0 : 1 + static_cast<int>(below(static_cast<size_t>(tensor.rank)));
  int64_t before = 0;
  for (size_t p = 0; p < parts; ++p) {
    RandomPart part;
    part.first_input = node->inputs.size();
    part.shape = tensor;
    part.tensor = node->tensors.size();
    part.axis = axis;
    part.before = before;
    if (axis != 0) {
      int64_t& size = part.shape.dims[static_cast<size_t>(tensor.rank - axis)];
      size = kSizes[below(below(6) == 0 ? 12 : 8)];
      before += size;
    }
    node->inputs.push_back(part.shape);
    node->inputs.push_back(random_operand(part.shape));
    node->parts.push_back(part);
  }
  if (axis != 0) tensor.dims[static_cast<size_t>(tensor.rank - axis)] = before;
  node->tensors.push_back(tensor);
}

inline std::string random_word(const char* of, size_t count) {
  std::string letters;
  while (letters.size() < count) letters += of[below(std::char_traits<char>::length(of))];
  return letters;
}

inline std::string random_parts_recipe(const RandomParts& node) {
  std::string text = "onnxfuse-cuda 3\nsource " + std::string(64, 'a') + "\n";
  std::vector<size_t> firsts, counts;
  size_t kernels = 0;
  for (const size_t output : node.order) {
    text += "part " + std::to_string(output) + "\n";
    const bool appended = node.parts[output].axis != 0;
    firsts.push_back(kernels);
    counts.push_back(1 + below(4));
    for (size_t k = 0; k + 1 < counts.back(); ++k) {
      const size_t vector = size_t{1} << below(4);
      const std::string output_letter = random_word(appended ? "lpp" : vector == 1 ? "lw" : "l", 1);
      text += "kernel k" + std::to_string(kernels++) + " vector " + std::to_string(vector) + " block 64 index " +
              (below(2) == 0 ? "32" : "64") + " access l" + random_word("sliocg", 1) + ":" + output_letter + "\n";
    }
    text += "kernel k" + std::to_string(kernels++) + " vector 1 block 64 index 64 access gg:" + (appended ? "p" : "w") + "\n";
  }
  for (size_t joint = below(4); joint > 0; --joint) {
    text += "joint all" + std::to_string(joint);
    for (size_t p = 0; p < firsts.size(); ++p) text += " " + std::to_string(firsts[p] + below(counts[p]));
    text += "\n";
  }
  return text;
}

inline RandomParts random_parts() {
  RandomParts node;
  for (size_t tensors = 1 + below(3); tensors > 0; --tensors) add_random_tensor(&node);
  node.program = "onnxfuse 2\n";
  for (size_t i = 0; i < node.inputs.size(); ++i) node.program += "input f32 broadcast\n";
  for (const RandomPart& part : node.parts) {
    node.program += "add f32 " + std::to_string(part.first_input) + " " + std::to_string(part.first_input + 1) + "\n";
  }
  for (size_t o = 0; o < node.parts.size(); ++o) {
    const bool begins = node.parts[o].axis == 0 || o == 0 || node.parts[o - 1].tensor != node.parts[o].tensor;
    node.program += (begins ? "output " : "append ") + std::to_string(node.inputs.size() + o) +
                    (begins ? "" : " -" + std::to_string(node.parts[o].axis)) + "\n";
    node.order.push_back(o);
  }
  std::shuffle(node.order.begin(), node.order.end(), g_random);
  node.recipe = random_parts_recipe(node);
  return node;
}

// --- launches ---

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

#endif  // ONNXFUSE_FUZZ_PARTS_H_
