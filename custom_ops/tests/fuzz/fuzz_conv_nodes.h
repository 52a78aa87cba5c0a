// Random nodes of fused convolutions, some of them spoilt, and shapes for them.
#ifndef ONNXFUSE_FUZZ_CONV_NODES_H_
#define ONNXFUSE_FUZZ_CONV_NODES_H_

#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "convolution/conv_node.h"
#include "tests/fuzz/fuzz_random.h"

namespace fuzz {

using namespace onnxfuse;

inline int64_t one_of(std::initializer_list<int64_t> values) { return values.begin()[below(values.size())]; }

inline void spoil_text(std::string* text) { spoil(text, "0123456789 \n;xlscogmany"); }

// The attributes of a node by their names.
struct Attributes {
  std::map<std::string, std::string> texts;
  std::map<std::string, int64_t> numbers;
  std::map<std::string, std::vector<int64_t>> lists;
  size_t operands[2] = {0, 0};  // of prologue and epilogue
  bool spoilt = false;

  AttributeSource source() const {
    const auto find = [](const auto& values, const char* name, auto* value) {
      const auto found = values.find(name);
      if (found == values.end()) return false;
      *value = found->second;
      return true;
    };
    return {[this, find](const char* name, std::string* text) { return find(texts, name, text); },
            [this, find](const char* name, int64_t* number) { return find(numbers, name, number); },
            [this, find](const char* name, std::vector<int64_t>* list) { return find(lists, name, list); }};
  }
};

inline std::string random_program(size_t operands, size_t outputs) {
  std::string text = "onnxfuse 1\ninput f32 broadcast\n";
  for (size_t i = 0; i < operands; ++i) text += below(4) == 0 ? "input f32 axis 1\n" : "input f32 broadcast\n";
  size_t value = 0;
  size_t values = operands + 1;
  for (size_t i = 0; i < operands; ++i, value = values++) {
    text += "add f32 " + std::to_string(value) + " " + std::to_string(i + 1) + "\n";
  }
  for (size_t o = 0; o < outputs; ++o) text += "output " + std::to_string(o == 0 ? value : 0) + "\n";
  return text;
}

// The operands' sum, where it is smaller than the tensor, is a stage of its own.
inline std::string program_of_stages() {
  const std::string input = "input f32 broadcast\n";
  return "onnxfuse 1\n" + input + input + input + "add f32 1 2\nadd f32 0 3\noutput 4\n";
}

// Groups of single channels, of which vectors take several at once.
inline void make_depthwise(int64_t channels, Attributes* attributes) {
  attributes->numbers["group"] = channels;
  auto& weights = attributes->lists["weight_shape"];
  weights[0] = channels;
  weights[1] = 1;
}

inline void spoil_attributes(Attributes* made) {
  made->spoilt = true;
  switch (below(4)) {
    case 0: spoil_text(&std::next(made->texts.begin(), static_cast<ptrdiff_t>(below(made->texts.size())))->second); break;
    case 1: made->numbers["group"] = one_of({-1, 0, 4, INT32_MAX, INT64_MAX, INT64_MIN}); break;
    case 2: made->lists.erase(std::next(made->lists.begin(), static_cast<ptrdiff_t>(below(made->lists.size())))); break;
    default: {
      auto& numbers = std::next(made->lists.begin(), static_cast<ptrdiff_t>(below(made->lists.size())))->second;
      numbers[below(numbers.size())] = one_of({-1, 0, 1, 32768, INT32_MAX, int64_t{1} << 40, INT64_MAX, INT64_MIN});
    }
  }
}

inline Attributes plain_attributes(size_t rank, bool transposed, int64_t group) {
  Attributes made;
  const auto list = [&](const char* name, size_t count, std::initializer_list<int64_t> values) {
    std::vector<int64_t>& numbers = made.lists[name];
    for (size_t i = 0; i < count; ++i) numbers.push_back(below(60) == 0 ? one_of({32767, 1000}) : one_of(values));
  };
  made.texts["operator"] = transposed ? "ConvTranspose" : "Conv";
  list("kernel_shape", rank, {1, 2, 3, 5});
  list("strides", rank, {1, 1, 2, 3, 4, 7, 8});
  list("dilations", rank, {1, 1, 2, 5});
  if (transposed) {
    list("output_padding", rank, {0});
    for (size_t d = 0; d < rank; ++d) made.lists["output_padding"][d] %= made.lists["strides"][d];
  }
  static const char* const kPads[] = {"NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"};
  const std::string auto_pad = made.texts["auto_pad"] = kPads[below(5)];
  if (auto_pad == "NOTSET") list("pads", 2 * rank, {0, 1, 2, 4});
  made.numbers["group"] = group;
  const int64_t first = one_of({1, 2, 5, 33}) * group;
  made.lists["weight_shape"] = {first, one_of({1, 2, 8})};
  for (const int64_t size : made.lists["kernel_shape"]) made.lists["weight_shape"].push_back(size);
  made.operands[1] = below(4);
  made.texts["program"] = random_program(made.operands[1], 1 + below(3));
  if (below(2) == 0) {
    made.operands[0] = below(3);
    made.texts["prologue"] = random_program(made.operands[0], 1);
  }
  return made;
}

// A product with a matrix.
inline Attributes product_attributes() {
  Attributes made = plain_attributes(1, false, 1);
  made.texts["operator"] = "MatMul";
  made.texts.erase("auto_pad");
  made.numbers = {{"transB", one_of({0, 1})}};
  made.lists = {{"weight_shape", {one_of({1, 2, 5, 33}), one_of({1, 2, 8, 24})}}};
  if (below(4) == 0) spoil_attributes(&made);
  return made;
}

inline Attributes random_attributes() {
  const size_t rank = 1 + below(3);
  const bool transposed = below(3) == 0;
  Attributes made = plain_attributes(rank, transposed, one_of({1, 1, 1, 2, 3, 5, 7}));
  if (below(4) == 0) spoil_attributes(&made);
  return made;
}

inline Shape random_operand(const Shape& space) {
  Shape shape;
  if (below(3) == 0) return shape;
  shape.rank = below(2) == 0 ? space.rank : 1 + static_cast<int>(below(static_cast<size_t>(space.rank)));
  const bool whole = below(3) == 0;
  for (int d = 0; d < shape.rank; ++d) {
    const int64_t size = space.dims[static_cast<size_t>(d + space.rank - shape.rank)];
    shape.dims[static_cast<size_t>(d)] = whole || below(2) == 0 ? size : 1;
  }
  if (below(60) == 0) shape.dims[0] = shape.dims[0] % 7 + 1;
  return shape;
}

inline void add_operands(const Program& program, const Shape& space, std::vector<Shape>* shapes) {
  for (size_t i = 1; i < program.input_count; ++i) {
    Shape shape = random_operand(space);
    if (program.values[i].along_axis && below(20) != 0) shape = {1, {below(2) == 0 ? space.dims[1] : 1}};
    shapes->push_back(shape);
  }
}

// Shapes that mostly fit; sometimes of more elements than fit 32 bits, or 64.
inline std::vector<Shape> random_shapes(const ConvNode& node) {
  Shape x = node.attributes.weights;
  const bool large = below(4) == 0;
  const auto immense = [] { return one_of({1 << 12, 1 << 16, INT32_MAX, int64_t{3} << 30, int64_t{1} << 40}); };
  x.dims[0] = large && below(3) == 0 ? immense() : one_of({1, 1, 2, 3, 0});
  x.dims[1] = node.attributes.in_channels + (below(60) == 0 ? 1 : 0);
  if (node.attributes.channels_last) {
    x.rank = 2 + static_cast<int>(below(4));
    std::fill(x.dims.begin() + 1, x.dims.begin() + x.rank, 1);
    x.dims[static_cast<size_t>(x.rank - 1)] = node.attributes.in_channels + (below(60) == 0 ? 1 : 0);
  }
  for (int d = node.attributes.channels_last ? 1 : 2; d < x.rank - int{node.attributes.channels_last}; ++d) {
    int64_t& size = x.dims[static_cast<size_t>(d)];
    size = large && below(2) == 0 ? immense() : one_of({4, 5, 7, 8, 9, 16, 24, below(8) == 0 ? 0 : 12, below(2) == 0 ? 75 : 1});
  }
  std::vector<Shape> shapes{x, node.attributes.weights};
  if (below(60) == 0) ++shapes[1].dims[below(4)];
  ConvGeometry geometry;
  std::string error;
  if (node.has_prologue) add_operands(node.prologue, x, &shapes);
  const bool fits = resolve_conv(node.attributes, x, shapes[1], &geometry, &error);
  add_operands(node.epilogue, fits ? geometry.output : x, &shapes);
  return shapes;
}

}  // namespace fuzz

#endif  // ONNXFUSE_FUZZ_CONV_NODES_H_
