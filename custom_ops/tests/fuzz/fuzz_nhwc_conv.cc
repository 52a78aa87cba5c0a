// Fuzzing of convolutions with the channels last: attributes and shapes that nobody should trust, and what comes out.
//
//   fuzz_nhwc_conv [runs] [seed]
// Every run makes a node and shapes (fuzz_conv_nodes.h).  Where a run is small enough it happens on memory of exactly
// the size, so that AddressSanitizer sees one element too many, and its results are held against plain sums.  All
// tensors are of small integers: all orders of the sums give the same.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "figures/nhwc_kernels.h"
#include "kernels/kernels.h"
#include "nodes/nhwc_conv/nhwc_conv_plan.h"
#include "tests/fuzz/fuzz_conv_nodes.h"
#include "tests/fuzz/fuzz_tensors.h"

namespace {

using namespace onnxfuse;
using fuzz::Attributes;
using fuzz::below;
using fuzz::count_of;
using fuzz::expect;
using fuzz::expect_reason;
using fuzz::one_of;

constexpr int64_t kMostProducts = 2'000'000;

int64_t any_channels() { return below(3) == 0 ? one_of({8, 15, 16, 17, 64}) : 1 + static_cast<int64_t>(below(80)); }

// Now and then as wide as the widest for which there are kernels of their own.
Attributes plain_attributes(size_t rank) {
  Attributes made = fuzz::plain_attributes(rank, false, 1);
  if (below(6) == 0) made.lists["kernel_shape"].back() = made.lists["weight_shape"].back() = 7;
  return made;
}

void make_product(Attributes* made) {
  for (const char* const name : {"kernel_shape", "strides"}) {
    for (int64_t& number : made->lists[name]) number = 1;
  }
  if (made->texts["auto_pad"] == "NOTSET") made->lists["pads"].assign(made->lists["pads"].size(), 0);
  auto& weights = made->lists["weight_shape"];
  std::fill(weights.begin() + 2, weights.end(), 1);
}

// The attributes of a convolution before, but for its Programs.
void add_attributes(const std::string& begin, const Attributes& before, Attributes* node) {
  for (const auto& [name, text] : before.texts) {
    if (name != "program" && name != "prologue") node->texts[begin + name] = text;
  }
  for (const auto& [name, number] : before.numbers) node->numbers[begin + name] = number;
  for (const auto& [name, list] : before.lists) node->lists[begin + name] = list;
}

// Makes of a product of all channels one that has a convolution of single channels before it, with such attributes.
void put_before(const Attributes& depthwise, Attributes* product) {
  add_attributes("depthwise_", depthwise, product);
  make_product(product);
  product->lists["weight_shape"][1] = depthwise.numbers.at("group");
  product->operands[0] = below(3);
  product->texts["prologue"] = fuzz::random_program(product->operands[0], 1);
}

// A Program that does no more than to keep a sum within bounds, and how many operands it has.
std::pair<std::string, size_t> bounds() {
  const std::string input = "input f32 broadcast\n";
  const std::string begin = "onnxfuse 1\n" + input;
  switch (below(4)) {
    case 0: return {begin + "relu f32 0\noutput 1\n", 0};
    case 1: return {begin + "input f32 axis 1\nadd f32 0 1\nrelu f32 2\noutput 3\n", 1};
    case 2: return {begin + input + input + "max f32 0 1\nmin f32 3 2\noutput 4\n", 2};
    default: break;
  }
  return {begin + "input f32 axis 1\n" + input + input + "add f32 0 1\nmax f32 4 2\nmin f32 5 3\noutput 6\n", 3};
}

// Puts a product before single channels, whose attributes begin so, and returns how many inputs the node has for it.
size_t put_expansion_before(const std::string& begin, Attributes* node) {
  Attributes expansion = plain_attributes(node->lists["kernel_shape"].size());
  make_product(&expansion);
  expansion.lists["weight_shape"][0] = node->numbers.at(begin + "group");
  expansion.lists["weight_shape"][1] = any_channels();
  add_attributes(begin + "expansion_", expansion, node);
  size_t operands = below(3);
  std::string program = fuzz::random_program(operands, 1);
  if (below(2) == 0) std::tie(program, operands) = bounds();
  node->texts[begin + "expansion_program"] = program;
  return 1 + operands;
}

// Makes a product of all channels that reads them in parts, and returns how many.
size_t read_parts(Attributes* product) {
  make_product(product);
  int64_t left = product->lists["weight_shape"][1];
  std::vector<int64_t>& parts = product->lists["joined_channels"];
  while (left > 1 && (parts.empty() || below(3) != 0)) {
    parts.push_back(1 + static_cast<int64_t>(below(static_cast<uint64_t>(left - 1))));
    left -= parts.back();
  }
  parts.push_back(left);
  if (below(30) == 0) parts[below(parts.size())] = one_of({-1, 0, 1, 2, INT64_MAX, INT64_MIN});
  return parts.size();
}

// Which inputs have the channels last, for a node of so many inputs before the operands.
void add_layouts(size_t inputs, Attributes* attributes) {
  std::vector<int64_t>& last = attributes->lists["nhwc_inputs"];
  const bool has_parts = attributes->lists.count("joined_channels") > 0;
  last.assign(inputs, has_parts && below(60) != 0 ? 1 : 0);
  last[0] = inputs > 2 || below(2) == 0 ? 1 : 0;
  last[1] = 0;
  const int64_t output = attributes->numbers["nhwc_output"] = one_of({0, 1});
  const char* const names[] = {"prologue", "program"};
  for (size_t p = 0; p < 2; ++p) {
    Program program;
    std::string error;
    const auto text = attributes->texts.find(names[p]);
    if (text == attributes->texts.end()) continue;
    expect(parse_program(text->second, &program, &error), "a program that is not valid");
    for (size_t i = 1; i < program.input_count; ++i) {
      const bool may_be_last = (p == 0 ? last[0] : output) == 1 && !program.values[i].along_axis;
      last.push_back(may_be_last && below(2) == 0 ? 1 : 0);
    }
  }
}

// A random program of which the first output is no longer negative.
std::string rectified(const std::string& text) {
  const size_t at = text.find("output ");
  const size_t end = text.find('\n', at);
  const auto values = std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(at), '\n') - 1;
  return text.substr(0, at) + "relu f32 " + text.substr(at + 7, end - at - 7) + "\noutput " + std::to_string(values) +
         text.substr(end);
}

// Makes several groups of the channels.
void make_groups(Attributes* made) {
  const int64_t group = made->numbers["group"] = one_of({2, 3, 5, 7, 9});
  made->lists["weight_shape"][0] = group * one_of({4, 5, 8, 12, 16, 24, 33});
  if (below(2) == 0) made->lists["weight_shape"][1] = made->lists["weight_shape"][0] / group;
}

// A valid node with `inputs` before the operands.
Attributes valid_attributes(size_t* inputs) {
  const size_t rank = 1 + below(2);
  Attributes made = plain_attributes(rank);
  made.lists["weight_shape"][0] = any_channels();
  if (below(2) == 0) made.lists["weight_shape"][1] = any_channels();
  for (size_t p = 0; p < 2; ++p) {
    if (made.operands[p] == 2 && below(4) == 0) made.texts[p == 0 ? "prologue" : "program"] = fuzz::program_of_stages();
  }
  if (below(4) == 0) made.texts["program"] = rectified(made.texts["program"]);
  if (below(3) == 0) std::tie(made.texts["program"], made.operands[1]) = bounds();
  *inputs = 2;
  switch (below(4)) {
    case 0:
      fuzz::make_depthwise(1 + any_channels(), &made);
      if (below(2) == 0) {
        made.texts.erase("prologue");
        made.operands[0] = 0;
        *inputs += put_expansion_before("", &made);
      }
      break;
    case 1: {
      Attributes depthwise = plain_attributes(rank);
      fuzz::make_depthwise(1 + any_channels(), &depthwise);
      put_before(depthwise, &made);
      *inputs = 3;
      if (below(2) == 0) *inputs += put_expansion_before("depthwise_", &made);
      break;
    }
    case 2: *inputs = 1 + read_parts(&made); break;
    default:
      if (below(2) == 0) make_groups(&made);
      break;
  }
  if (made.texts.count("prologue") > 0 && below(3) == 0) {
    std::tie(made.texts["prologue"], made.operands[0]) = bounds();
  }
  add_layouts(*inputs, &made);
  return made;
}

void spoil(Attributes* attributes) {
  if (below(4) != 0) fuzz::spoil_attributes(attributes);
  if (below(8) == 0) attributes->numbers["nhwc_output"] = one_of({-1, 0, 1, 2, INT64_MAX});
  if (below(8) == 0) attributes->lists["nhwc_inputs"].resize(below(8));
}

// What an operand in a space with the channels last looks like: with its own channels last, or with no two dimensions
// that would change places.
Shape in_last_space(Shape shape, int rank, bool is_last) {
  if (is_last) {
    Shape whole;
    whole.rank = rank;
    for (int d = 0; d < rank; ++d) whole.dims[static_cast<size_t>(d)] = shape.from_back(rank - 1 - d);
    return channels_last(whole);
  }
  if (below(20) == 0) return shape;
  const bool keeps_channels = below(2) == 0;
  const int channels = shape.rank - rank + 1;
  for (int d = std::max(channels, 0); d < shape.rank; ++d) {
    if ((d == channels) != keeps_channels) shape.dims[static_cast<size_t>(d)] = 1;
  }
  return shape;
}

// In the order [N, C, spatial…] all shapes but the weights', as plain convolutions of the pair have them.
std::vector<Shape> shapes_of_pair(const NhwcConv& node) {
  ConvNode before;
  before.attributes = node.depthwise;
  before.epilogue = node.conv.prologue;
  std::vector<Shape> shapes = fuzz::random_shapes(before);
  ConvGeometry geometry;
  std::string error;
  Shape space = shapes[0];
  if (resolve_conv(node.depthwise, shapes[0], node.depthwise.weights, &geometry, &error)) space = geometry.output;
  space.dims[1] = node.conv.attributes.out_channels;
  fuzz::add_operands(node.conv.epilogue, space, &shapes);
  shapes.insert(shapes.begin() + 1, node.conv.attributes.weights);
  return shapes;
}

// The same for any node.
std::vector<Shape> plain_shapes(const NhwcConv& node) {
  std::vector<Shape> shapes = node.has_depthwise ? shapes_of_pair(node) : fuzz::random_shapes(node.conv);
  if (!node.has_expansion) return shapes;
  std::vector<Shape> expanded{node.expansion.weights};
  fuzz::add_operands(node.expanded, shapes[0], &expanded);
  shapes.insert(shapes.begin() + static_cast<ptrdiff_t>(node.expansion_weights()), expanded.begin(), expanded.end());
  if (shapes[0].rank > 1) shapes[0].dims[1] = node.expansion.in_channels;
  return shapes;
}

std::vector<Shape> random_shapes(const NhwcConv& node) {
  std::vector<Shape> shapes = plain_shapes(node);
  if (node.nhwc[0]) shapes[0] = channels_last(shapes[0]);
  shapes[1] = packed_weights(node.conv.attributes);
  const Shape whole = shapes[0];
  for (size_t i = 0; i < node.parts.size(); ++i) {
    Shape part = whole;
    if (part.rank > 0) part.dims[static_cast<size_t>(part.rank - 1)] = node.parts[i];
    if (i > 0) shapes.insert(shapes.begin() + static_cast<ptrdiff_t>(NhwcConv::part_input(i)), part);
    shapes[NhwcConv::part_input(i)] = part;
  }
  if (node.has_depthwise) shapes[2] = packed_weights(node.depthwise);
  if (node.has_expansion) shapes[node.expansion_weights()] = packed_weights(node.expansion);
  if (below(60) == 0) ++shapes[1 + below(node.first_operand() - 1)].dims[below(4)];
  const auto turn = [&](const Program& program, size_t first, bool space_is_last) {
    for (size_t i = 1; i < program.input_count; ++i) {
      const size_t input = first + i - 1;
      if (!space_is_last || program.values[i].along_axis) continue;
      shapes[input] = in_last_space(shapes[input], node.rank(), node.nhwc[input]);
    }
  };
  turn(node.expanded, node.expanded_operands(), true);
  turn(node.conv.prologue, node.first_operand(), node.nhwc[0]);
  turn(node.conv.epilogue, node.first_operand() + node.conv.prologue_operands(), node.nhwc_output);
  return shapes;
}

using Memory = std::unique_ptr<float[]>;

// A tensor of these dimensions, [N, C, spatial…] or [N, spatial…, C], in the other order.
Memory turned(const float* from, const Shape& plain, bool to_last) {
  const int64_t count = count_of(plain);
  const int64_t images = plain.dims[0];
  const int64_t channels = plain.dims[1];
  const int64_t pixels = count == 0 ? 0 : count / images / channels;
  Memory to = fuzz::memory_of(count);
  for (int64_t n = 0; n < images; ++n) {
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t p = 0; p < pixels; ++p) {
        const int64_t first = (n * channels + c) * pixels + p;
        const int64_t last = (n * pixels + p) * channels + c;
        to[static_cast<size_t>(to_last ? last : first)] = from[to_last ? first : last];
      }
    }
  }
  return to;
}

// Weights as ONNX has them.
Memory unpacked(const float* packed, const ConvAttributes& conv) {
  int64_t count = 0;
  element_count(conv.weights, &count);
  Memory weights = fuzz::memory_of(count);
  const int64_t channels = conv.weights.dims[1];
  const int64_t taps = count / conv.out_channels / channels;
  constexpr auto block = static_cast<int64_t>(kNhwcBlock);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t m = i / taps / channels;
    const int64_t in_block = ((m / block * taps + i % taps) * channels + i / taps % channels) * block + m % block;
    weights[static_cast<size_t>(i)] = packed[is_by_channel(conv) ? i % taps * conv.out_channels + m : in_block];
  }
  return weights;
}

// An operand of a Program, input `input`, for each element of `space` in the plain order.
Memory spread(const NhwcConv& node, const Value& value, size_t input, const std::vector<Shape>& shapes,
              const std::vector<const void*>& inputs, const Shape& space) {
  Shape shape = shapes[input];
  const auto* values = static_cast<const float*>(inputs[input]);
  Memory plain;
  if (node.nhwc[input]) {
    shape = channels_first(shape);
    plain = turned(values, shape, false);
    values = plain.get();
  }
  if (value.along_axis) {
    shape.rank = node.rank() - 1;  // [C] broadcasts as [C, 1, 1]
    std::fill_n(shape.dims.begin() + 1, shape.rank - 1, 1);
  }
  const int64_t count = count_of(space);
  Memory whole = fuzz::memory_of(count);
  for (int64_t k = 0; k < count; ++k) whole[static_cast<size_t>(k)] = values[fuzz::place_in(shape, space, k)];
  return whole;
}

// The first output of a Program of additions and bounds for elements of `space` in the plain order, which are its first input;
// the others are inputs of the node from `first` on.
void run_program(const NhwcConv& node, const Program& program, size_t first, const std::vector<Shape>& shapes,
                 const std::vector<const void*>& inputs, const Shape& space, float* elements) {
  std::vector<Memory> operands(1);
  for (size_t i = 1; i < program.input_count; ++i) {
    operands.push_back(spread(node, program.values[i], first + i - 1, shapes, inputs, space));
  }
  std::vector<float> values(program.values.size());
  for (int64_t k = 0; k < count_of(space); ++k) {
    values[0] = elements[k];
    for (size_t i = 1; i < operands.size(); ++i) values[i] = operands[i][static_cast<size_t>(k)];
    for (size_t v = operands.size(); v < values.size(); ++v) {
      const Value& value = program.values[v];
      const float a = values[value.operands[0]];
      const float b = value.op == Op::Relu ? 0.0f : values[value.operands[1]];
      values[v] = value.op == Op::Add ? a + b : value.op == Op::Min ? std::min(a, b) : std::max(a, b);
    }
    elements[k] = values[program.outputs[0]];
  }
}

// The parts of X as one tensor of so many elements.
Memory joined(const NhwcConv& node, const std::vector<const void*>& inputs, int64_t count) {
  Memory whole = fuzz::memory_of(count);
  float* to = whole.get();
  for (int64_t pixel = 0; pixel < count / node.conv.attributes.in_channels; ++pixel) {
    for (size_t i = 0; i < node.parts.size(); ++i) {
      const auto* const part = static_cast<const float*>(inputs[NhwcConv::part_input(i)]);
      to = std::copy_n(part + pixel * node.parts[i], node.parts[i], to);
    }
  }
  return whole;
}

// Outputs of the Programs after the first are the convolution's result.
void check_results(const NhwcConv& node, const std::vector<Shape>& shapes, const NhwcShapes& resolved,
                   const std::vector<const void*>& inputs, const std::vector<Memory>& outputs) {
  const auto* x = static_cast<const float*>(inputs[0]);
  Shape plain = node.nhwc[0] ? channels_first(shapes[0]) : shapes[0];
  Memory whole;
  if (!node.parts.empty()) {
    plain.dims[1] = node.conv.attributes.in_channels;
    whole = joined(node, inputs, count_of(plain));
    x = whole.get();
  }
  Memory read = node.nhwc[0] ? turned(x, plain, false) : fuzz::memory_of(count_of(plain));
  if (!node.nhwc[0]) std::copy_n(x, count_of(plain), read.get());
  if (node.has_expansion) {
    const Memory weights = unpacked(static_cast<const float*>(inputs[node.expansion_weights()]), node.expansion);
    read = fuzz::plain_sums(resolved.expansion, read.get(), weights.get());
    plain = resolved.expansion.output;
    run_program(node, node.expanded, node.expanded_operands(), shapes, inputs, plain, read.get());
  }
  if (node.has_depthwise) {
    const Memory weights = unpacked(static_cast<const float*>(inputs[2]), node.depthwise);
    read = fuzz::plain_sums(resolved.depthwise, read.get(), weights.get());
    plain = resolved.depthwise.output;
  }
  if (node.conv.has_prologue) {
    run_program(node, node.conv.prologue, node.first_operand(), shapes, inputs, plain, read.get());
  }
  const Memory weights = unpacked(static_cast<const float*>(inputs[1]), node.conv.attributes);
  Memory wanted = fuzz::plain_sums(resolved.geometry, read.get(), weights.get());
  const Shape& result = resolved.geometry.output;
  const auto check = [&](const Memory& output) {
    const Memory first = node.nhwc_output ? turned(output.get(), result, false) : nullptr;
    const float* const made = first == nullptr ? output.get() : first.get();
    expect(std::equal(made, made + count_of(result), wanted.get()), "a wrong result");
  };
  for (size_t o = 1; o < outputs.size(); ++o) check(outputs[o]);
  run_program(node, node.conv.epilogue, node.first_operand() + node.conv.prologue_operands(), shapes, inputs, result,
              wanted.get());
  check(outputs[0]);
}

void run(const NhwcConv& node, const NhwcConvPlan& plan, const NhwcShapes& resolved) {
  const std::vector<Shape>& shapes = plan.key.shapes;
  std::vector<Memory> memory;
  std::vector<const void*> inputs;
  for (const Shape& shape : shapes) {
    memory.push_back(fuzz::integers(count_of(shape)));
    inputs.push_back(memory.back().get());
  }
  std::vector<Memory> results;
  std::vector<void*> outputs;
  while (results.size() < node.epilogue.outputs.size()) {
    results.push_back(fuzz::memory_of(count_of(plan.output)));
    std::fill_n(results.back().get(), count_of(plan.output), -1e9f);
    outputs.push_back(results.back().get());
  }
  run_nhwc_conv(node, plan, inputs, outputs, fuzz::kHost);
  check_results(node, shapes, resolved, inputs, results);
}

// Whether there is memory for a run, and time for plain sums.
bool is_small(const NhwcConvPlan& plan, const NhwcShapes& shapes) {
  const auto& inputs = plan.key.shapes;
  if (std::any_of(inputs.begin(), inputs.end(), [](const Shape& shape) { return count_of(shape) < 0; })) return false;
  if (count_of(plan.output) < 0 || count_of(shapes.depthwise.output) < 0) return false;
  if (plan.bytes > size_t{1} << 24) return false;
  const ConvGeometry& g = plan.geometry;
  if (count_of({4, {g.batch, g.in_channels, g.in[1], g.in[2]}}) < 0) return false;  // of parts that are joined
  if (plan.copies && count_of({4, {g.batch, plan.rows, plan.columns, g.in_channels}}) < 0) return false;
  const auto products = [](const ConvGeometry& of) {
    return static_cast<double>(of.batch * of.in[1] * of.in[2]) * static_cast<double>(of.out_channels * of.products());
  };
  if (count_of(shapes.expansion.output) < 0) return false;
  const double all = products(shapes.geometry) + products(shapes.depthwise) + products(shapes.expansion);
  return all <= static_cast<double>(kMostProducts);
}

void check_node() {
  size_t inputs = 0;
  Attributes attributes = valid_attributes(&inputs);
  const auto texts = attributes.texts;
  if (below(4) == 0) spoil(&attributes);
  NhwcConv node;
  std::string error;
  inputs += attributes.operands[0] + attributes.operands[1];
  if (!read_nhwc_conv(attributes.source(), inputs, &node, &error)) return expect_reason(error);
  const std::vector<Shape> shapes = random_shapes(node);
  NhwcShapes resolved;
  NhwcConvPlan plan;
  if (!resolve_nhwc_conv(node, shapes, &resolved, &error) || !make_nhwc_conv_plan(node, {shapes}, &plan, &error)) {
    return expect_reason(error);
  }
  // A Program that was spoilt may compute anything.
  if (attributes.texts == texts && is_small(plan, resolved)) run(node, plan, resolved);
}

}  // namespace

int main(int argc, char** argv) { return fuzz::run(argc, argv, check_node); }
