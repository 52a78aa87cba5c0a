// A convolution with the channels last, as its attributes describe it: the sums of a pixel's filters are vectors, and
// what they read of a pixel follows one another.
//
// Before a product of all channels there may be a convolution of single channels, whose result the prologue reads in
// place of X: each pixel of it is computed where it is wanted, and never stored.  Before single channels in turn there may be a
// product and a Program, whose results are computed a few rows at a time: all three are an inverted residual block (Sandler et
// al., MobileNetV2, 2018).  Or X may be in parts, of some channels each, that such a product reads as if they were joined.
//
// Inputs: X or its first part, W, the weights of the convolution before if there is one, those of the product before that and
// its Program's operands after the first, the other parts of X, the prologue's operands after its first input, the epilogue's operands after the convolution's result, all in the order
// [N, C, spatial…] but for those that the attributes name: these are [N, spatial…, C], as the outputs may be.  Weights are
// not as ONNX has them: `packed_weights`.
#ifndef ONNXFUSE_NHWC_CONV_H_
#define ONNXFUSE_NHWC_CONV_H_

#include <string>
#include <vector>

#include "convolution/conv_node.h"
#include "program/attribute_source.h"
#include "program/program.h"
#include "program/shape.h"

namespace onnxfuse {

// Whether each channel is a group, with one filter.
bool is_by_channel(const ConvAttributes& conv);

// Convolutions over one dimension or two, of float32; of several groups if each channel is one, or each has kLeastGroup
// filters or more.
struct NhwcConv {
  ConvNode conv;  // as for FusedConv
  bool has_depthwise = false;
  ConvAttributes depthwise;  // of the convolution before
  bool has_expansion = false;
  ConvAttributes expansion;  // of the product before single channels
  Program expanded;          // what its result goes through, in the layout of X
  std::vector<int64_t> parts;  // channels of each part of X; empty if it is whole
  std::vector<bool> nhwc;   // which inputs have the channels last
  bool nhwc_output = false;

  // The Programs, each in the layout of its first input.
  Program prologue;
  Program epilogue;

  bool by_channel() const { return is_by_channel(conv.attributes); }
  int rank() const { return conv.attributes.weights.rank; }
  // Inputs beyond X and W that are before the operands.
  size_t more_inputs() const {
    if (!parts.empty()) return parts.size() - 1;
    return (has_depthwise ? 1 : 0) + (has_expansion ? expanded.input_count : 0);
  }
  size_t first_operand() const { return 2 + more_inputs(); }
  size_t inputs() const { return conv.inputs() + more_inputs(); }
  // Which input the expansion's weights are, and the first operand of what its result goes through.
  size_t expansion_weights() const { return has_depthwise ? 3 : 2; }
  size_t expanded_operands() const { return expansion_weights() + 1; }
  // Which input a part of X is.
  static size_t part_input(size_t part) { return part == 0 ? 0 : part + 1; }
};

// Reads and validates the attributes of a node with this many inputs; nothing in them is trusted.  On failure returns
// false and sets `error`.
bool read_nhwc_conv(const AttributeSource& source, size_t inputs, NhwcConv* node, std::string* error);

// The shape of W: [filters / kNhwcBlock, kernel…, channels of a group, kNhwcBlock], with zeros for filters that there are not;
// or [kernel…, channels] for channels by themselves.
Shape packed_weights(const ConvAttributes& conv);

// [N, C, spatial…] as [N, spatial…, C], and back.
Shape channels_last(const Shape& shape);
Shape channels_first(const Shape& shape);

struct NhwcShapes {
  ConvGeometry geometry;
  ConvGeometry depthwise;       // of the convolution before
  ConvGeometry expansion;       // of the product before single channels
  std::vector<Shape> expanded;  // of the inputs of its Program, its result first
  std::vector<Shape> prologue;  // of the Program's inputs, in the layout of X
  std::vector<Shape> epilogue;  // likewise, the convolution's result first
};

// False if the inputs' shapes do not fit the node; then `error` says why.
bool resolve_nhwc_conv(const NhwcConv& node, const std::vector<Shape>& inputs, NhwcShapes* shapes, std::string* error);

}  // namespace onnxfuse

#endif  // ONNXFUSE_NHWC_CONV_H_
