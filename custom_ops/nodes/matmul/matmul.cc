#include "nodes/matmul/matmul.h"

#include <utility>

#include "convolution/conv_node.h"
#include "figures/convolution.h"
#include "figures/nhwc_kernels.h"
#include "platform/integers.h"

namespace onnxfuse {
namespace {

constexpr size_t kOperands = 2;  // the first

bool fail(std::string problem, std::string* error) {
  *error = std::move(problem);
  return false;
}

// A 1x1 convolution of rows, whose shapes are those of a run.
NhwcConv product(Program program) {
  NhwcConv conv;
  ConvAttributes& attributes = conv.conv.attributes;
  attributes.kernel = attributes.strides = attributes.dilations = {1};
  attributes.pads = {0, 0};
  conv.epilogue = conv.conv.epilogue = std::move(program);
  conv.nhwc.assign(conv.conv.inputs(), true);
  conv.nhwc_output = true;
  return conv;
}

}  // namespace

bool read_matmul(const AttributeSource& source, size_t inputs, MatMul* node, std::string* error) {
  *node = MatMul{};
  if (!source.number("columns", &node->columns) || node->columns < 1 || node->columns > kMaxConvWeights) {
    return fail("it has no attribute columns that is a number of columns", error);
  }
  Program program;
  if (!read_whole_program(source, "program", &program, error)) return false;
  if (program.values[0].type != DType::f32) return fail("the program is not for a product of f32", error);
  if (inputs != kOperands + program.input_count - 1) {
    return fail("the node has " + std::to_string(inputs) + " inputs, but its program takes " +
                    std::to_string(kOperands + program.input_count - 1), error);
  }
  node->conv = product(std::move(program));
  return true;
}

bool make_matmul_plan(const MatMul& node, const PlanKey& key, NhwcConvPlan* plan, std::string* error) {
  const Shape& a = key.shapes[0];
  if (a.rank < 2) return fail("input 0 of shape " + to_string(a) + " has fewer than 2 dimensions", error);
  constexpr auto block = static_cast<int64_t>(kNhwcBlock);
  const int64_t inner = a.from_back(0);
  const Shape weights{3, {divide_up(node.columns, block), inner, block}};
  if (key.shapes[1] != weights) {
    return fail("input 1 is of shape " + to_string(key.shapes[1]) + ", not " + to_string(weights), error);
  }
  if (inner < 1) return fail("input 0 of shape " + to_string(a) + " has rows of no elements", error);
  Shape result = a;
  result.dims[static_cast<size_t>(a.rank - 1)] = node.columns;
  int64_t count = 0;
  if (!element_count(result, &count)) return fail("the result of shape " + to_string(result) + " has too many elements", error);
  NhwcShapes shapes;
  shapes.epilogue.push_back(result);
  shapes.epilogue.insert(shapes.epilogue.end(), key.shapes.begin() + kOperands, key.shapes.end());
  std::vector<Shape> operands;
  if (!resolve_whole_program(node.conv.epilogue, "program", shapes.epilogue, &operands, error)) return false;
  ConvGeometry& g = shapes.geometry;
  g.batch = 1;
  g.in_channels = inner;
  g.out_channels = node.columns;
  g.in.back() = g.out.back() = count / node.columns;
  g.output = result;
  return plan_nhwc_conv(node.conv, shapes, key, plan, error);
}

}  // namespace onnxfuse
