// Random nodes whose Program is in several parts: maps of shapes of their own, some of which make one tensor.
#ifndef ONNXFUSE_FUZZ_PARTS_H_
#define ONNXFUSE_FUZZ_PARTS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

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

}  // namespace fuzz

#endif  // ONNXFUSE_FUZZ_PARTS_H_
