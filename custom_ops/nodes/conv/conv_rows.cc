#include "nodes/conv/conv_rows.h"

#include <algorithm>

#include "platform/caches.h"
#include "platform/integers.h"

namespace onnxfuse {
namespace {

// Vectors of a long row.
constexpr int64_t kLongRow = 4;
// Results that are computed before the epilogue reads them.
constexpr int64_t kResults = 4096;

}  // namespace

bool ConvRows::suits(const ConvGeometry& g, size_t floats) {
  if (g.out[2] * 2 < static_cast<int64_t>(floats)) return false;
  if (g.in[0] != 1 || g.out[0] != 1 || g.kernel[0] != 1 || g.pads[0] != 0) return false;
  if (g.strides[1] > 2 || (g.dilations[1] > 1 && g.kernel[1] > 1)) return false;
  if (std::max(g.kernel[1], g.kernel[2]) > kMostTaps) return false;
  // Of short rows that skip columns, each channel is better computed in a lane.
  const bool long_rows = g.out[2] > kLongRow * static_cast<int64_t>(floats);
  return g.strides[2] == 1 || (g.strides[2] == 2 && g.strides[1] == 2 && long_rows);
}

ConvRows::ConvRows(const ConvGeometry& g) : block_{}, rows_(g.out[1]) {
  block_.kernel_height = g.kernel[1];
  block_.kernel_width = g.kernel[2];
  block_.stride = g.strides[1];
  block_.column_stride = g.strides[2];
  block_.dilation = g.dilations[2];
  block_.pad_top = g.pads[1];
  block_.pad_left = g.pads[2];
  block_.height = g.in[1];
  block_.width = g.in[2];
  block_.out_width = g.out[2];
  const int64_t read = g.batch * g.in_channels * g.in[1] * g.in[2];
  block_.fetches = read > level2_bytes() / static_cast<int64_t>(sizeof(float));
  strips_ = divide_up(rows_, std::clamp<int64_t>(kResults / g.out[2], 1, rows_));
  strip_rows_ = divide_up(rows_, strips_);
  strips_ = divide_up(rows_, strip_rows_);
  channels_at_once_ = std::clamp<int64_t>(kResults / (strip_rows_ * g.out[2]), 1, g.group);
}

ConvRange ConvRows::strip(int64_t index) const {
  return {index * strip_rows_, std::min((index + 1) * strip_rows_, rows_)};
}

size_t ConvRows::result_elements() const {
  return zeros_at() + static_cast<size_t>(block_.width);
}

// Behind the results, and what is written behind those.
size_t ConvRows::zeros_at() const {
  return static_cast<size_t>((channels_at_once_ * strip_rows_ + 1) * block_.out_width) + 2 * kMaxFloats;
}

void ConvRows::compute(const float* image, const float* weights, const float* bias, int64_t channels, int64_t strip,
                       float* results, const float* target) const {
  const ConvRange rows = this->strip(strip);
  float* const zeros = results + zeros_at();
  std::fill_n(zeros, block_.width, 0.0f);
  ConvRowsBlock block = block_;
  block.input = image;
  block.zeros = zeros;
  block.weights = weights;
  block.addends = bias;
  block.out = results;
  block.first_row = rows.begin;
  block.rows = rows.size();
  block.channels = channels;
  block.target = target == nullptr ? nullptr : target + rows.begin * block.out_width;
  block.target_pitch = rows_ * block.out_width;
  kernels().conv_rows(block);
}

}  // namespace onnxfuse
