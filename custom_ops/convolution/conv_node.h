// A fused convolution as its attributes describe it: a convolution or a matrix product, a Program for its result, and
// perhaps one for what it reads.
//
// Inputs: X, W, the prologue's operands after X, the epilogue's operands after the convolution's result.
#ifndef ONNXFUSE_CONV_NODE_H_
#define ONNXFUSE_CONV_NODE_H_

#include <string>
#include <vector>

#include "convolution/conv.h"
#include "plan/plan.h"
#include "program/attribute_source.h"
#include "program/program.h"

namespace onnxfuse {

struct ConvNode {
  ConvAttributes attributes;
  DType type = DType::f32;  // of X, W and the result: f32, f16 or bf16
  bool has_prologue = false;
  Program prologue;
  Program epilogue;

  size_t prologue_operands() const { return has_prologue ? prologue.input_count - 1 : 0; }
  size_t epilogue_operands() const { return epilogue.input_count - 1; }
  size_t inputs() const { return 2 + prologue_operands() + epilogue_operands(); }
};

// Reads a Program for what a convolution reads or makes.  On failure returns false and sets `error`.
bool read_whole_program(const AttributeSource& source, const char* name, Program* program, std::string* error);

// Sets `operands` to the shapes that a Program's inputs after the first have in the space of the first, which every
// output is to have too.  False if the inputs' shapes do not fit; then `error` says why, with the attribute's name.
bool resolve_whole_program(const Program& program, const char* name, const std::vector<Shape>& inputs,
                           std::vector<Shape>* operands, std::string* error);

// Reads and validates the attributes of a node with this many inputs; nothing in them is trusted.  On failure returns
// false and sets `error`.
bool read_conv_node(const AttributeSource& source, size_t inputs, ConvNode* node, std::string* error);

// A run's shapes.
struct ConvShapes {
  ConvGeometry geometry;
  std::vector<Shape> prologue;  // of the Program's operands after the first, as they broadcast to X
  std::vector<Shape> epilogue;  // likewise, to the result
};

// False if the inputs' shapes do not fit the node; then `error` says why.
bool resolve_conv_node(const ConvNode& node, const std::vector<Shape>& inputs, ConvShapes* shapes, std::string* error);

// The shapes of the Programs' inputs.
std::vector<Shape> prologue_inputs(const ConvNode& node, const std::vector<Shape>& inputs);
std::vector<Shape> epilogue_inputs(const ConvNode& node, const std::vector<Shape>& inputs, const Shape& result);

}  // namespace onnxfuse

#endif  // ONNXFUSE_CONV_NODE_H_
