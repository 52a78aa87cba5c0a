#include "convolution/conv_node.h"

#include <utility>

#include "program/program_shapes.h"

namespace onnxfuse {
namespace {

bool fail(std::string problem, std::string* error) {
  *error = std::move(problem);
  return false;
}

}  // namespace

bool read_whole_program(const AttributeSource& source, const char* name, Program* program, std::string* error) {
  std::string text;
  if (!source.text(name, &text)) return fail(std::string("it has no attribute ") + name, error);
  if (!parse_program(text, program, error)) {
    return fail("the " + std::string(name) + " attribute is not valid: " + *error, error);
  }
  // What the convolution reads or makes is not a vector along an axis of something else.
  const bool whole = program->input_count > 0 && !program->values[0].along_axis;
  return whole || fail("the first input of the " + std::string(name) + " is not a whole tensor", error);
}

bool resolve_whole_program(const Program& program, const char* name, const std::vector<Shape>& inputs,
                     std::vector<Shape>* operands, std::string* error) {
  const Shape& space = inputs[0];
  std::vector<Shape> values;
  const std::string where = "the " + std::string(name) + ": ";
  if (!resolve_shapes(program, inputs, &values, error)) return fail(where + *error, error);
  for (size_t i = 1; i < inputs.size(); ++i) {
    Shape both;
    if (!broadcast(values[i], space, &both) || both != space) {
      return fail(where + "input " + std::to_string(i) + " of shape " + to_string(inputs[i]) +
                      " does not broadcast to " + to_string(space), error);
    }
  }
  for (const uint16_t output : program.outputs) {
    if (values[output] == space) continue;
    return fail(where + "an output has shape " + to_string(values[output]) + ", not " + to_string(space), error);
  }
  operands->assign(values.begin() + 1, values.begin() + static_cast<ptrdiff_t>(inputs.size()));
  return true;
}

bool read_conv_node(const AttributeSource& source, size_t inputs, ConvNode* node, std::string* error) {
  *node = ConvNode{};
  std::string text;
  const bool multiplies = source.text("operator", &text) && text == "MatMul";
  const bool good = multiplies ? read_product_attributes(source, &node->attributes, error)
                               : read_conv_attributes(source, &node->attributes, error);
  if (!good) return false;
  if (!read_whole_program(source, "program", &node->epilogue, error)) return false;
  node->type = node->epilogue.values[0].type;
  if (node->type != DType::f32 && node->type != DType::f16 && node->type != DType::bf16) {
    return fail("the program is for a convolution of " + std::string(info(node->type).name), error);
  }
  node->has_prologue = source.text("prologue", &text);
  if (node->has_prologue) {
    if (!read_whole_program(source, "prologue", &node->prologue, error)) return false;
    const Program& prologue = node->prologue;
    const bool fits = prologue.outputs.size() == 1 && prologue.values[0].type == node->type &&
                      output_type(prologue, 0) == node->type;
    if (!fits) return fail("the prologue does not make one tensor of the program's type from one", error);
  }
  return inputs == node->inputs() || fail("the node has " + std::to_string(inputs) + " inputs, but its programs take " +
                                              std::to_string(node->inputs()), error);
}

bool resolve_conv_node(const ConvNode& node, const std::vector<Shape>& inputs, ConvShapes* shapes, std::string* error) {
  *shapes = ConvShapes{};
  if (!resolve_conv(node.attributes, inputs[0], inputs[1], &shapes->geometry, error)) return false;
  if (node.has_prologue &&
      !resolve_whole_program(node.prologue, "prologue", prologue_inputs(node, inputs), &shapes->prologue, error)) {
    return false;
  }
  return resolve_whole_program(node.epilogue, "program", epilogue_inputs(node, inputs, shapes->geometry.output),
                         &shapes->epilogue, error);
}

std::vector<Shape> prologue_inputs(const ConvNode& node, const std::vector<Shape>& inputs) {
  std::vector<Shape> shapes{inputs[0]};
  const auto first = inputs.begin() + 2;
  shapes.insert(shapes.end(), first, first + static_cast<ptrdiff_t>(node.prologue_operands()));
  return shapes;
}

std::vector<Shape> epilogue_inputs(const ConvNode& node, const std::vector<Shape>& inputs, const Shape& result) {
  std::vector<Shape> shapes{result};
  shapes.insert(shapes.end(), inputs.end() - static_cast<ptrdiff_t>(node.epilogue_operands()), inputs.end());
  return shapes;
}

}  // namespace onnxfuse
