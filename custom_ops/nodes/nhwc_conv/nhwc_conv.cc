#include "nodes/nhwc_conv/nhwc_conv.h"

#include <algorithm>
#include <utility>

#include "figures/nhwc_kernels.h"
#include "kernels/kernels.h"
#include "platform/integers.h"

namespace onnxfuse {
namespace {

constexpr size_t kWeights = 1;
constexpr size_t kDepthwiseWeights = 2;
constexpr size_t kMostSpatial = 2;

bool fail(std::string problem, std::string* error) {
  *error = std::move(problem);
  return false;
}

// The Program for tensors of `rank` dimensions of which the channels come last.
Program with_channels_last(Program program, int rank) {
  for (size_t i = 0; i < program.input_count; ++i) {
    Value& value = program.values[i];
    if (!value.along_axis) continue;
    const int axis = value.axis < 0 ? value.axis + rank : value.axis;
    if (axis >= 1 && axis < rank) value.axis = axis == 1 ? rank - 1 : axis - 1;
  }
  return program;
}

// The attributes whose names begin with that of a convolution before.
AttributeSource source_of(const AttributeSource& source, const char* convolution) {
  const auto name_of = [begin = std::string(convolution)](const char* name) { return begin + name; };
  return {[source, name_of](const char* name, std::string* text) { return source.text(name_of(name).c_str(), text); },
          [source, name_of](const char* name, int64_t* number) { return source.number(name_of(name).c_str(), number); },
          [source, name_of](const char* name, std::vector<int64_t>* numbers) {
            return source.numbers(name_of(name).c_str(), numbers);
          }};
}

bool is_product(const ConvAttributes& conv) {
  const auto is = [](const std::vector<int64_t>& numbers, int64_t number) {
    return std::all_of(numbers.begin(), numbers.end(), [number](int64_t n) { return n == number; });
  };
  return conv.group == 1 && is(conv.kernel, 1) && is(conv.strides, 1) && is(conv.pads, 0);
}

// What is before single channels, if there is something, of the attributes of these.
bool read_expansion(const AttributeSource& source, NhwcConv* node, std::string* error) {
  std::string text;
  const AttributeSource attributes = source_of(source, "expansion_");
  node->has_expansion = attributes.text("operator", &text);
  if (!node->has_expansion) return true;
  const auto say = [&] { return fail("of the expansion: " + *error, error); };
  if (!read_conv_attributes(attributes, &node->expansion, error)) return say();
  if (!read_whole_program(attributes, "program", &node->expanded, error)) return say();
  const Program& program = node->expanded;
  const auto is_float = [&](uint16_t value) { return program.values[value].type == DType::f32; };
  bool floats = program.outputs.size() == 1 && is_float(program.outputs[0]);
  for (size_t i = 0; i < program.input_count; ++i) floats = floats && is_float(static_cast<uint16_t>(i));
  return floats || fail("the program of the expansion does not make one tensor of f32 from such", error);
}

// Of a product of matrices alone.
bool read_depthwise(const AttributeSource& source, NhwcConv* node, std::string* error) {
  if (!read_conv_attributes(source, &node->depthwise, error)) {
    return fail("of the depthwise convolution: " + *error, error);
  }
  const ConvAttributes& conv = node->conv.attributes;
  const ConvAttributes& depthwise = node->depthwise;
  const bool fits = is_product(conv) && is_by_channel(depthwise) && !depthwise.transposed &&
                    depthwise.out_channels == conv.in_channels && depthwise.spatial_rank() == conv.spatial_rank() &&
                    node->conv.has_prologue && node->nhwc[0];
  return fits || fail("the depthwise convolution is not before a product with prologue and channels last", error);
}

// A product before single channels alone, of X with the channels last.
bool check_expansion(const NhwcConv& node, std::string* error) {
  if (!node.has_expansion) return true;
  const ConvAttributes& single = node.has_depthwise ? node.depthwise : node.conv.attributes;
  const ConvAttributes& expansion = node.expansion;
  const bool fits = is_by_channel(single) && is_product(expansion) && !expansion.transposed &&
                    expansion.out_channels == single.in_channels && expansion.spatial_rank() == single.spatial_rank() &&
                    node.parts.empty() && node.nhwc[0] && (node.has_depthwise || !node.conv.has_prologue);
  return fits || fail("the expansion is no product before single channels", error);
}

// Of a product of matrices alone.
bool check_parts(const NhwcConv& node, std::string* error) {
  if (node.parts.empty()) return true;
  int64_t left = node.conv.attributes.in_channels;
  for (const int64_t channels : node.parts) {
    if (channels < 1 || channels > left) return fail("the attribute joined_channels does not add up to the channels", error);
    left -= channels;
  }
  if (left != 0) return fail("the attribute joined_channels does not add up to the channels", error);
  const bool fits = is_product(node.conv.attributes) && !node.has_depthwise;
  return fits || fail("the attribute joined_channels is not of a product alone", error);
}

// Whether all parts of X have the channels last.
bool has_parts_last(const NhwcConv& node) {
  for (size_t i = 0; i < node.parts.size(); ++i) {
    if (!node.nhwc[NhwcConv::part_input(i)]) return false;
  }
  return true;
}

bool read_layouts(const AttributeSource& source, NhwcConv* node, std::string* error) {
  std::vector<int64_t> last;
  int64_t output = 0;
  const auto is_flag = [](int64_t number) { return number == 0 || number == 1; };
  const bool read = source.numbers("nhwc_inputs", &last) && last.size() == node->inputs() &&
                    std::all_of(last.begin(), last.end(), is_flag);
  if (!read) return fail("it has no attribute nhwc_inputs with 0 or 1 for each input", error);
  if (!source.number("nhwc_output", &output) || !is_flag(output)) {
    return fail("it has no attribute nhwc_output that is 0 or 1", error);
  }
  node->nhwc.assign(last.begin(), last.end());
  node->nhwc_output = output == 1;
  const auto second = node->nhwc.begin() + static_cast<ptrdiff_t>(node->first_operand() + node->conv.prologue_operands());
  const auto names = [](auto first, auto last) { return std::find(first, last, true) != last; };
  const size_t weights_end = node->parts.empty() ? node->first_operand() : kWeights + 1;
  const auto before = node->nhwc.begin() + static_cast<ptrdiff_t>(weights_end);
  const bool weights = names(node->nhwc.begin() + kWeights, before);
  if (!has_parts_last(*node)) return fail("the attribute nhwc_inputs does not name all parts of X", error);
  const bool wrong = weights || (!node->nhwc[0] && names(node->nhwc.begin(), second)) ||
                     (!node->nhwc_output && names(second, node->nhwc.end()));
  return !wrong || fail("the attribute nhwc_inputs names weights, or an operand of what has the channels first", error);
}

// The shape of an operand of a Program in its space.  Whoever has the channels last somewhere has no two dimensions to
// exchange anywhere else.
bool operand_shape(const Shape& shape, bool along_axis, bool is_last, bool space_is_last, int rank, size_t input,
                   Shape* operand, std::string* error) {
  *operand = shape;
  if (is_last && shape.rank != rank) {
    return fail("input " + std::to_string(input) + " of shape " + to_string(shape) + " does not have " +
                    std::to_string(rank) + " dimensions", error);
  }
  if (along_axis || is_last || !space_is_last || shape.rank == 0 || shape.rank > rank) return true;
  Shape whole;
  whole.rank = rank;
  for (int d = 0; d < rank; ++d) whole.dims[static_cast<size_t>(d)] = shape.from_back(rank - 1 - d);
  const auto is_wide = [](int64_t dim) { return dim != 1; };
  const bool spatial = std::any_of(whole.dims.begin() + 2, whole.dims.begin() + rank, is_wide);
  if (spatial && whole.dims[1] != 1) {
    return fail("input " + std::to_string(input) + " of shape " + to_string(shape) + " does not have the channels last",
                error);
  }
  *operand = channels_last(whole);
  return true;
}

// The shape of X, or of its parts if they were joined.
bool joined_shape(const NhwcConv& node, const std::vector<Shape>& inputs, Shape* x, std::string* error) {
  *x = inputs[0];
  if (node.parts.empty() || x->rank != node.rank()) return true;  // the rank is looked at later
  int64_t& channels = x->dims[static_cast<size_t>(x->rank - 1)];
  for (size_t i = 0; i < node.parts.size(); ++i) {
    const size_t input = NhwcConv::part_input(i);
    channels = node.parts[i];
    if (inputs[input] == *x) continue;
    return fail("input " + std::to_string(input) + " of shape " + to_string(inputs[input]) + " is not a part of shape " +
                    to_string(*x), error);
  }
  channels = node.conv.attributes.in_channels;
  return true;
}

bool operand_shapes(const NhwcConv& node, const Program& program, const std::vector<Shape>& inputs, size_t first,
                    bool space_is_last, std::vector<Shape>* shapes, std::string* error) {
  for (size_t i = 1; i < program.input_count; ++i) {
    const size_t input = first + i - 1;
    Shape shape;
    if (!operand_shape(inputs[input], program.values[i].along_axis, node.nhwc[input], space_is_last, node.rank(), input,
                       &shape, error)) {
      return false;
    }
    shapes->push_back(shape);
  }
  return true;
}

}  // namespace

bool is_by_channel(const ConvAttributes& conv) {
  return conv.group == conv.in_channels && conv.group == conv.out_channels && conv.group > 1;
}

bool read_nhwc_conv(const AttributeSource& source, size_t inputs, NhwcConv* node, std::string* error) {
  *node = NhwcConv{};
  std::string text;
  node->has_depthwise = source.text("depthwise_operator", &text);
  const AttributeSource depthwise = source_of(source, "depthwise_");
  if (!read_expansion(node->has_depthwise ? depthwise : source, node, error)) return false;
  if (source.numbers("joined_channels", &node->parts) && node->parts.size() < 2) {
    return fail("the attribute joined_channels has fewer than 2 elements", error);
  }
  if (inputs < node->more_inputs()) return fail("the node has too few inputs", error);
  if (!read_conv_node(source, inputs - node->more_inputs(), &node->conv, error)) return false;
  if (node->conv.attributes.channels_last) return fail("the attribute operator is not Conv or ConvTranspose", error);
  const ConvAttributes& conv = node->conv.attributes;
  if (conv.transposed) return fail("the attribute operator is not Conv", error);
  if (conv.spatial_rank() > kMostSpatial) return fail("the attribute kernel_shape has more than 2 elements", error);
  if (node->conv.type != DType::f32) return fail("the program is not for a convolution of f32", error);
  if (conv.group > 1 && !is_by_channel(conv) && conv.out_channels / conv.group < static_cast<int64_t>(kLeastGroup)) {
    return fail("the attribute group leaves a group fewer than 4 filters", error);
  }
  if (!check_parts(*node, error) || !read_layouts(source, node, error)) return false;
  if (node->has_depthwise && !read_depthwise(depthwise, node, error)) return false;
  if (!check_expansion(*node, error)) return false;
  const int rank = node->rank();
  node->expanded = with_channels_last(std::move(node->expanded), rank);
  node->epilogue = node->nhwc_output ? with_channels_last(node->conv.epilogue, rank) : node->conv.epilogue;
  if (node->conv.has_prologue) {
    node->prologue = node->nhwc[0] ? with_channels_last(node->conv.prologue, rank) : node->conv.prologue;
  }
  return true;
}

Shape packed_weights(const ConvAttributes& conv) {
  constexpr auto block = static_cast<int64_t>(kNhwcBlock);
  Shape shape;
  const auto add = [&shape](int64_t size) { shape.dims[static_cast<size_t>(shape.rank++)] = size; };
  const bool single = is_by_channel(conv);
  if (!single) add(divide_up(conv.out_channels, block));
  for (const int64_t size : conv.kernel) add(size);
  add(single ? conv.in_channels : conv.in_channels / conv.group);
  if (!single) add(block);
  return shape;
}

Shape channels_last(const Shape& shape) {
  Shape last = shape;
  std::rotate(last.dims.begin() + 1, last.dims.begin() + 2, last.dims.begin() + last.rank);
  return last;
}

Shape channels_first(const Shape& shape) {
  Shape first = shape;
  std::rotate(first.dims.begin() + 1, first.dims.begin() + first.rank - 1, first.dims.begin() + first.rank);
  return first;
}

bool resolve_nhwc_conv(const NhwcConv& node, const std::vector<Shape>& inputs, NhwcShapes* shapes, std::string* error) {
  *shapes = NhwcShapes{};
  Shape x;
  if (!joined_shape(node, inputs, &x, error)) return false;
  const ConvAttributes& conv = node.conv.attributes;
  const auto check_weights = [&](size_t input, const ConvAttributes& of) {
    const Shape wanted = packed_weights(of);
    return inputs[input] == wanted || fail("the weights are of shape " + to_string(inputs[input]) + ", not " +
                                               to_string(wanted), error);
  };
  if (!check_weights(kWeights, conv)) return false;
  if (node.has_depthwise && !check_weights(kDepthwiseWeights, node.depthwise)) return false;
  if (node.has_expansion && !check_weights(node.expansion_weights(), node.expansion)) return false;
  if (x.rank != node.rank()) {
    return fail("input 0 of shape " + to_string(x) + " does not have " + std::to_string(node.rank()) + " dimensions",
                error);
  }
  Shape read = node.nhwc[0] ? channels_first(x) : x;
  std::vector<Shape> operands;
  if (node.has_expansion) {
    if (!resolve_conv(node.expansion, read, node.expansion.weights, &shapes->expansion, error)) return false;
    read = shapes->expansion.output;
    shapes->expanded.push_back(channels_last(read));
    if (!operand_shapes(node, node.expanded, inputs, node.expanded_operands(), true, &shapes->expanded, error) ||
        !resolve_whole_program(node.expanded, "program of the expansion", shapes->expanded, &operands, error)) {
      return false;
    }
  }
  if (node.has_depthwise) {
    if (!resolve_conv(node.depthwise, read, node.depthwise.weights, &shapes->depthwise, error)) return false;
    read = shapes->depthwise.output;
  }
  if (!resolve_conv(conv, read, conv.weights, &shapes->geometry, error)) return false;
  if (node.conv.has_prologue) {
    shapes->prologue.push_back(node.nhwc[0] ? channels_last(read) : read);
    if (!operand_shapes(node, node.prologue, inputs, node.first_operand(), node.nhwc[0], &shapes->prologue, error) ||
        !resolve_whole_program(node.prologue, "prologue", shapes->prologue, &operands, error)) {
      return false;
    }
  }
  const Shape& result = shapes->geometry.output;
  shapes->epilogue.push_back(node.nhwc_output ? channels_last(result) : result);
  const size_t first = node.first_operand() + node.conv.prologue_operands();
  return operand_shapes(node, node.epilogue, inputs, first, node.nhwc_output, &shapes->epilogue, error) &&
         resolve_whole_program(node.epilogue, "program", shapes->epilogue, &operands, error);
}

}  // namespace onnxfuse
