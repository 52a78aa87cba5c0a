#include "convolution/conv.h"

#include <algorithm>

#include "figures/convolution.h"

namespace onnxfuse {
namespace {

bool fail(std::string problem, std::string* error) {
  *error = std::move(problem);
  return false;
}

bool read_auto_pad(const AttributeSource& source, AutoPad* auto_pad, std::string* error) {
  static constexpr struct {
    const char* name;
    AutoPad value;
  } kValues[] = {{"NOTSET", AutoPad::NotSet},
                 {"SAME_UPPER", AutoPad::SameUpper},
                 {"SAME_LOWER", AutoPad::SameLower},
                 {"VALID", AutoPad::Valid}};
  std::string text;
  if (!source.text("auto_pad", &text)) return fail("it has no attribute auto_pad", error);
  for (const auto& value : kValues) {
    if (text != value.name) continue;
    *auto_pad = value.value;
    return true;
  }
  return fail("the attribute auto_pad is not NOTSET, SAME_UPPER, SAME_LOWER or VALID", error);
}

// Extent of the kernel over the input, with what dilation skips.
int64_t dilated(const ConvAttributes& attributes, size_t d) {
  return attributes.dilations[d] * (attributes.kernel[d] - 1) + 1;
}

int64_t padding(const ConvAttributes& attributes, size_t d) {
  return attributes.pads[d] + attributes.pads[d + attributes.spatial_rank()];
}

// auto_pad splits an odd number so that SAME_UPPER has one more at the end of what is padded.
int64_t begin_of(int64_t total, bool more_at_end) { return more_at_end ? total / 2 : total - total / 2; }

bool is_same(AutoPad auto_pad) { return auto_pad == AutoPad::SameUpper || auto_pad == AutoPad::SameLower; }

// Conv: the formula of ONNX's operator specification.
bool forward_size(const ConvAttributes& attributes, size_t d, int64_t size, int64_t* output, int64_t* pad_begin) {
  const int64_t stride = attributes.strides[d];
  *pad_begin = attributes.pads[d];
  int64_t room = 0;  // by which the padded input is larger than the kernel
  if (is_same(attributes.auto_pad)) {
    *output = size / stride + (size % stride != 0 ? 1 : 0);
    int64_t total = 0;
    if (__builtin_add_overflow((*output - 1) * stride - size, dilated(attributes, d), &total)) return false;
    *pad_begin = begin_of(std::max<int64_t>(total, 0), attributes.auto_pad == AutoPad::SameUpper);
    return *output > 0;
  }
  if (__builtin_add_overflow(size, padding(attributes, d) - dilated(attributes, d), &room) || room < 0) return false;
  *output = room / stride + 1;
  return true;
}

// ConvTranspose: likewise.  Where a kernel smaller than the stride leaves SAME_… nothing to take away, the output is
// smaller than the input times the stride, as in ONNX Runtime.
bool transposed_size(const ConvAttributes& attributes, size_t d, int64_t size, int64_t* output, int64_t* pad_begin) {
  int64_t whole = 0;
  int64_t scaled = 0;
  const int64_t tail = attributes.output_padding[d] + dilated(attributes, d);
  if (__builtin_mul_overflow(size, attributes.strides[d], &scaled)) return false;
  if (__builtin_add_overflow(scaled - attributes.strides[d], tail, &whole)) return false;
  int64_t total = padding(attributes, d);
  *pad_begin = attributes.pads[d];
  if (is_same(attributes.auto_pad)) {
    total = std::max<int64_t>(whole - scaled, 0);
    *pad_begin = begin_of(total, attributes.auto_pad == AutoPad::SameUpper);
  }
  *output = whole - total;
  return *output > 0;
}

// The shape for which the kernels are made; so the run's weights must have it.
bool read_weight_shape(const AttributeSource& source, ConvAttributes* attributes, std::string* error) {
  std::vector<int64_t> sizes;
  const size_t rank = attributes->spatial_rank() + 2;
  if (!source.numbers("weight_shape", &sizes)) return fail("it has no attribute weight_shape of integers", error);
  const bool same_kernel = sizes.size() == rank && std::equal(attributes->kernel.begin(), attributes->kernel.end(),
                                                              sizes.begin() + 2);
  if (!same_kernel) return fail("the attribute weight_shape does not end with kernel_shape", error);
  attributes->weights.rank = static_cast<int>(rank);
  std::copy(sizes.begin(), sizes.end(), attributes->weights.dims.begin());
  int64_t count = 0;
  if (!element_count(attributes->weights, &count) || count == 0 || count > kMaxConvWeights) {
    return fail("the attribute weight_shape has no elements, or more than 2130706431", error);
  }
  if (sizes[0] % attributes->group != 0) return fail("the attribute weight_shape is not of the groups", error);
  const int64_t channels = sizes[1] * attributes->group;  // both are less than 2^31
  attributes->in_channels = attributes->transposed ? sizes[0] : channels;
  attributes->out_channels = attributes->transposed ? channels : sizes[0];
  return true;
}

bool resolve_product(const ConvAttributes& attributes, const Shape& input, ConvGeometry* geometry, std::string* error) {
  constexpr int most = static_cast<int>(kMaxSpatialRank) + 2;
  if (input.rank < 2 || input.rank > most || input.from_back(0) != attributes.in_channels) {
    return fail("input " + to_string(input) + " is not of 2 to 5 dimensions, the last of them " +
                    std::to_string(attributes.in_channels), error);
  }
  ConvGeometry result;
  result.channels_last = true;
  result.transposed = attributes.transposed;
  result.in_channels = attributes.in_channels;
  result.out_channels = attributes.out_channels;
  result.batch = input.from_back(most - 1);
  for (size_t d = 0; d < kMaxSpatialRank; ++d) {
    result.in[d] = result.out[d] = input.from_back(static_cast<int>(kMaxSpatialRank - d));
  }
  result.output = input;
  result.output.dims[static_cast<size_t>(input.rank - 1)] = attributes.out_channels;
  int64_t count = 0;
  if (!element_count(result.output, &count)) {
    return fail("the output shape " + to_string(result.output) + " has too many elements", error);
  }
  *geometry = result;
  return true;
}

}  // namespace

bool read_conv_numbers(const AttributeSource& source, const char* name, size_t count, int64_t low,
                       std::vector<int64_t>* numbers, std::string* error) {
  if (!source.numbers(name, numbers)) return fail(std::string("it has no attribute ") + name + " of integers", error);
  if (numbers->size() != count) {
    return fail(std::string("the attribute ") + name + " has " + std::to_string(numbers->size()) + " elements, not " +
                    std::to_string(count), error);
  }
  const bool good = std::all_of(numbers->begin(), numbers->end(),
                                [low](int64_t number) { return number >= low && number <= kMaxConvAttribute; });
  return good || fail(std::string("an element of the attribute ") + name + " is not from " + std::to_string(low) +
                          " to 32767", error);
}

bool read_conv_windows(const AttributeSource& source, ConvAttributes* attributes, std::string* error) {
  if (!source.numbers("kernel_shape", &attributes->kernel)) return fail("it has no attribute kernel_shape", error);
  const size_t rank = attributes->kernel.size();
  if (rank == 0 || rank > kMaxSpatialRank) return fail("the attribute kernel_shape has not 1 to 3 elements", error);
  return read_conv_numbers(source, "kernel_shape", rank, 1, &attributes->kernel, error) &&
         read_conv_numbers(source, "strides", rank, 1, &attributes->strides, error) &&
         read_conv_numbers(source, "dilations", rank, 1, &attributes->dilations, error);
}

bool read_conv_attributes(const AttributeSource& source, ConvAttributes* attributes, std::string* error) {
  *attributes = ConvAttributes{};
  std::string text;
  if (!source.text("operator", &text)) return fail("it has no attribute operator", error);
  if (text != "Conv" && text != "ConvTranspose") {
    return fail("the attribute operator is not Conv or ConvTranspose", error);
  }
  attributes->transposed = text == "ConvTranspose";
  if (!read_conv_windows(source, attributes, error)) return false;
  const size_t rank = attributes->spatial_rank();
  if (!source.number("group", &attributes->group)) return fail("it has no attribute group", error);
  if (attributes->group < 1 || attributes->group > kMaxConvWeights) {
    return fail("the attribute group is not from 1 to 2130706431", error);
  }
  if (!read_weight_shape(source, attributes, error)) return false;
  if (!read_auto_pad(source, &attributes->auto_pad, error)) return false;
  attributes->pads.assign(2 * rank, 0);
  if (attributes->auto_pad == AutoPad::NotSet &&
      !read_conv_numbers(source, "pads", 2 * rank, 0, &attributes->pads, error)) {
    return false;
  }
  attributes->output_padding.assign(rank, 0);
  if (!attributes->transposed) return true;
  if (!read_conv_numbers(source, "output_padding", rank, 0, &attributes->output_padding, error)) return false;
  for (size_t d = 0; d < rank; ++d) {
    if (attributes->output_padding[d] < std::max(attributes->strides[d], attributes->dilations[d])) continue;
    return fail("an element of the attribute output_padding is not less than its stride or dilation", error);
  }
  return true;
}

bool read_product_attributes(const AttributeSource& source, ConvAttributes* attributes, std::string* error) {
  *attributes = ConvAttributes{};
  std::vector<int64_t> sizes;
  int64_t by_rows = 0;
  if (!source.number("transB", &by_rows) || by_rows < 0 || by_rows > 1) {
    return fail("it has no attribute transB that is 0 or 1", error);
  }
  if (!source.numbers("weight_shape", &sizes) || sizes.size() != 2) {
    return fail("it has no attribute weight_shape of two integers", error);
  }
  Shape& weights = attributes->weights;
  weights.rank = 2;
  std::copy(sizes.begin(), sizes.end(), weights.dims.begin());
  int64_t count = 0;
  if (!element_count(weights, &count) || count == 0 || count > kMaxConvWeights) {
    return fail("the attribute weight_shape has no elements, or more than 2130706431", error);
  }
  attributes->channels_last = true;
  attributes->transposed = by_rows == 0;
  attributes->in_channels = sizes[attributes->transposed ? 0 : 1];
  attributes->out_channels = sizes[attributes->transposed ? 1 : 0];
  attributes->kernel = attributes->strides = attributes->dilations = {1};
  attributes->pads = {0, 0};
  attributes->output_padding = {0};
  return true;
}

bool conv_output_size(const ConvAttributes& attributes, size_t d, int64_t size, int64_t* output, int64_t* pad_begin) {
  return attributes.transposed ? transposed_size(attributes, d, size, output, pad_begin)
                               : forward_size(attributes, d, size, output, pad_begin);
}

bool conv_keeps_size(const ConvAttributes& attributes, size_t d) {
  if (attributes.strides[d] != 1) return false;
  if (is_same(attributes.auto_pad)) return true;
  return dilated(attributes, d) - 1 + attributes.output_padding[d] == padding(attributes, d);
}

int64_t conv_elements(const ConvGeometry::Sizes& sizes) {
  if (*std::min_element(sizes.begin(), sizes.end()) == 0) return 0;
  int64_t count = 0;
  const bool overflow =
      __builtin_mul_overflow(sizes[0], sizes[1], &count) || __builtin_mul_overflow(count, sizes[2], &count);
  return overflow ? 0 : count;
}

bool resolve_conv(const ConvAttributes& attributes, const Shape& input, const Shape& weights, ConvGeometry* geometry,
                  std::string* error) {
  if (weights != attributes.weights) {
    return fail("the weights are of shape " + to_string(weights) + ", not " + to_string(attributes.weights), error);
  }
  if (attributes.channels_last) return resolve_product(attributes, input, geometry, error);
  if (input.rank != weights.rank || input.dims[1] != attributes.in_channels) {
    return fail("input " + to_string(input) + " is not for weights " + to_string(weights) + " in " +
                    std::to_string(attributes.group) + " groups", error);
  }
  ConvGeometry result;
  result.transposed = attributes.transposed;
  result.batch = input.dims[0];
  result.group = attributes.group;
  result.in_channels = attributes.in_channels;
  result.out_channels = attributes.out_channels;
  result.output.rank = input.rank;
  result.output.dims[0] = result.batch;
  result.output.dims[1] = result.out_channels;
  for (size_t d = 0; d < attributes.spatial_rank(); ++d) {
    const size_t to = kMaxSpatialRank - attributes.spatial_rank() + d;
    result.in[to] = input.dims[d + 2];
    result.kernel[to] = attributes.kernel[d];
    result.strides[to] = attributes.strides[d];
    result.dilations[to] = attributes.dilations[d];
    if (!conv_output_size(attributes, d, result.in[to], &result.out[to], &result.pads[to])) {
      return fail("the output for input " + to_string(input) + " has no elements along dimension " +
                      std::to_string(d + 2) + ", or too many", error);
    }
    result.output.dims[d + 2] = result.out[to];
  }
  int64_t count = 0;
  if (!element_count(result.output, &count)) {
    return fail("the output shape " + to_string(result.output) + " has too many elements", error);
  }
  *geometry = result;
  return true;
}

}  // namespace onnxfuse
