#include "nodes/nhwc_conv/nhwc_channel_rows.h"

#include <algorithm>

#include "kernels/kernels.h"

namespace onnxfuse {

// What a few channels read of a row stays in the level 1 cache for the rows below.  The last of them begin early where there
// are less than a vector.
void NhwcChannelRows::compute(const float* x, int64_t image, const ConvRange& rows, const ConvRange& columns,
                              const Place& place) const {
  const int64_t all = s_.in_channels;
  const int64_t latest = std::max<int64_t>(all - static_cast<int64_t>(kMaxFloats), 0);
  NhwcChannels block{};
  block.row_pitch = s_.dilations[1] * s_.in[2] * all;
  block.columns = s_.in[2];
  block.begin = columns.begin * s_.strides[2] - s_.pads[2];
  block.stride = s_.strides[2];
  block.dilation = s_.dilations[2];
  block.width = static_cast<size_t>(s_.kernel[2]);
  block.weight_pitch = static_cast<size_t>(s_.kernel[2] * all);
  block.addends = addends_;
  block.pixels = static_cast<size_t>(columns.size());
  block.channels = static_cast<size_t>(all);
  block.target = place.target;
  block.bounds = place.bounds;
  for (int64_t first = 0; first < all; first += kNhwcChannelsAtOnce) {
    block.first = static_cast<size_t>(std::min(first, latest));
    block.last = static_cast<size_t>(std::min(first + kNhwcChannelsAtOnce, all));
    int64_t pixel = place.pixel;
    for (int64_t row = rows.begin; row < rows.end; ++row, pixel += place.pitch) {
      const ConvRange height = taps_inside(s_, 1, row);
      const int64_t top = row * s_.strides[1] - s_.pads[1] + height.begin * s_.dilations[1];
      block.height = static_cast<size_t>(height.size());
      block.input = height.size() > 0 ? x + (image * s_.in[1] + top) * s_.in[2] * all : nullptr;
      block.weights = weights_ + height.begin * s_.kernel[2] * all;
      block.out = place.target == nullptr ? place.out + pixel * all : nullptr;
      block.target_pixel = static_cast<size_t>(pixel);
      kernels().nhwc_channels(block);
    }
  }
}

}  // namespace onnxfuse
