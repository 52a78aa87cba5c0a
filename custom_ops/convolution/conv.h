// Convolutions as ONNX defines Conv and ConvTranspose, and matrix products as convolutions of single positions with the
// channels last: the attributes, and what follows from them for given shapes.
#ifndef ONNXFUSE_CONV_H_
#define ONNXFUSE_CONV_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "figures/convolution.h"
#include "program/attribute_source.h"
#include "program/shape.h"

namespace onnxfuse {

enum class AutoPad : uint8_t { NotSet, SameUpper, SameLower, Valid };

struct ConvAttributes {
  bool transposed = false;     // ConvTranspose, or a product with weights [K, N]
  bool channels_last = false;  // a product: X is [.., C], the result [.., M], and the weights have two dimensions
  AutoPad auto_pad = AutoPad::NotSet;
  int64_t group = 1;
  int64_t in_channels = 0;  // of all groups
  int64_t out_channels = 0;
  Shape weights;                // [M, C / group, kernel…], or [C, M / group, kernel…] if transposed
  std::vector<int64_t> kernel;  // one element for each spatial dimension, as strides and dilations
  std::vector<int64_t> strides;
  std::vector<int64_t> dilations;
  std::vector<int64_t> pads;            // begin of every spatial dimension, then their ends; 0 unless NotSet
  std::vector<int64_t> output_padding;  // 0 for Conv

  size_t spatial_rank() const { return kernel.size(); }
};

// Reads `count` numbers from `low` to kMaxConvAttribute; and kernel_shape, strides and dilations.  Nothing in them is
// trusted.  On failure they return false and set `error`.
bool read_conv_numbers(const AttributeSource& source, const char* name, size_t count, int64_t low,
                       std::vector<int64_t>* numbers, std::string* error);
bool read_conv_windows(const AttributeSource& source, ConvAttributes* attributes, std::string* error);

// Reads and validates the attributes of a fused convolution; nothing in them is trusted.  On failure returns false and
// sets `error`.
bool read_conv_attributes(const AttributeSource& source, ConvAttributes* attributes, std::string* error);

// The same for a product, of whose weights the attribute transB says whether they are [N, K] and not [K, N].
bool read_product_attributes(const AttributeSource& source, ConvAttributes* attributes, std::string* error);

// The output's size in spatial dimension `d` for an input of `size` >= 0 there, and the padding at its begin.  False if
// it has no element, which ONNX Runtime refuses too, or is too large.
bool conv_output_size(const ConvAttributes& attributes, size_t d, int64_t size, int64_t* output, int64_t* pad_begin);

// Whether the output has the input's size in spatial dimension `d`, whatever that is.
bool conv_keeps_size(const ConvAttributes& attributes, size_t d);

// A convolution of three spatial dimensions; one of fewer has leading ones of size 1.
struct ConvGeometry {
  using Sizes = std::array<int64_t, kMaxSpatialRank>;

  bool transposed = false;
  bool channels_last = false;  // the dimensions before the last are batch and in, of which the first ones may be missing
  int64_t batch = 0;
  int64_t group = 1;
  int64_t in_channels = 0;
  int64_t out_channels = 0;
  Sizes in{1, 1, 1};
  Sizes out{1, 1, 1};
  Sizes kernel{1, 1, 1};
  Sizes strides{1, 1, 1};
  Sizes dilations{1, 1, 1};
  Sizes pads{0, 0, 0};  // at the begin
  Shape output;         // of the tensor: [batch, out_channels, out…] or [.., out_channels], in its own rank

  // Channels of a group, of the input and of the output, and weights of one of the latter.
  int64_t channels() const { return in_channels / group; }
  int64_t filters() const { return out_channels / group; }
  int64_t products() const { return channels() * kernel[0] * kernel[1] * kernel[2]; }

  // Whether each channel is computed from its own.
  bool by_channel() const { return !transposed && group == in_channels && group == out_channels; }
};

// None if a size is 0, however large the others are; or if they are so many that another dimension of the tensor is 0.
int64_t conv_elements(const ConvGeometry::Sizes& sizes);

// False if the shapes of input and weights do not fit the attributes; then `error` says why.
bool resolve_conv(const ConvAttributes& attributes, const Shape& input, const Shape& weights, ConvGeometry* geometry,
                  std::string* error);

}  // namespace onnxfuse

#endif  // ONNXFUSE_CONV_H_
