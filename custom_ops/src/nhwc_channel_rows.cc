#include "nhwc_channel_rows.h"

#include <algorithm>

#include "executor.h"
#include "integers.h"

namespace onnxfuse {

// What a few channels read of a row stays in the level 1 cache for the rows below.  The last of them begin early where there
// are less than a vector.
void NhwcChannelRows::compute(int64_t image, const ConvRange& rows, const ConvRange& columns, const Place& place) const {
  const int64_t all = s_.in_channels;
  const int64_t latest = std::max<int64_t>(all - static_cast<int64_t>(kMaxFloats), 0);
  for (int64_t first = 0; first < all; first += kNhwcChannelsAtOnce) {
    const ConvRange channels{std::min(first, latest), std::min(first + kNhwcChannelsAtOnce, all)};
    if (plan_.pads_columns) pad_rows(image, rows, columns, channels);
    Place at = place;
    for (int64_t row = rows.begin; row < rows.end; ++row, at.pixel += at.pitch) {
      if (plan_.pads_columns) {
        compute_padded_row(row, rows.begin, columns, channels, at);
      } else {
        compute_row(image, row, columns, channels, at);
      }
    }
  }
}

// Copies what some channels of some rows read, with zeros for what lies beside the image.
void NhwcChannelRows::pad_rows(int64_t image, const ConvRange& rows, const ConvRange& columns,
                               const ConvRange& channels) const {
  const int64_t top = rows.begin * s_.strides[1] - s_.pads[1];
  const int64_t left = columns.begin * s_.strides[2] - s_.pads[2];
  const int64_t width = extent(s_, 2, columns.size());
  const int64_t begin = std::clamp<int64_t>(-left, 0, width);
  const int64_t end = std::clamp<int64_t>(s_.in[2] - left, begin, width);
  const int64_t count = channels.size();
  ConvCopy copy{};
  copy.pitch = static_cast<size_t>(count);
  copy.from_pitch = s_.in_channels;
  copy.end = x_ + s_.batch * s_.in[1] * s_.in[2] * s_.in_channels;
  copy.stride = 1;
  copy.rows = static_cast<size_t>(end - begin);
  copy.width = static_cast<size_t>(count);
  const int64_t bottom = std::min(top + extent(s_, 1, rows.size()), s_.in[1]);
  // The zeros are those of the channels before, unless the copy of these wrote whole vectors into them.
  const bool has_zeros = channels.begin > 0 && count == kNhwcChannelsAtOnce;
  for (int64_t y = std::max<int64_t>(top, 0); y < bottom; ++y) {
    float* const to = padded_ + (y - top) * width * count;
    copy.to = to + begin * count;
    if (end > begin) {
      copy.from = x_ + ((image * s_.in[1] + y) * s_.in[2] + left + begin) * s_.in_channels + channels.begin;
      kernels().take_rows(copy);
    }
    if (has_zeros) continue;
    std::fill_n(to, begin * count, 0.0f);
    std::fill(to + end * count, to + width * count, 0.0f);
  }
}

// A row of results from that copy, in which every tap of a row meets an element.
void NhwcChannelRows::compute_padded_row(int64_t row, int64_t first_row, const ConvRange& columns,
                                         const ConvRange& channels, const Place& place) const {
  const ConvRange height = taps_inside(s_, 1, row);
  const int64_t count = channels.size();
  const int64_t pitch = extent(s_, 2, columns.size()) * count;
  NhwcChannels block = block_of(height, {0, s_.kernel[2]}, channels, place);
  const int64_t top = (row - first_row) * s_.strides[1] + height.begin * s_.dilations[1];
  block.input = static_cast<const float*>(whole_tensor(padded_ + top * pitch, channels.begin, sizeof(float)));
  block.pixel_pitch = s_.strides[2] * count;
  block.row_pitch = s_.dilations[1] * pitch;
  block.column_pitch = s_.dilations[2] * count;
  block.pixels = static_cast<size_t>(columns.size());
  kernels().nhwc_channels(block);
}

// Pixels at the left and at the right that some taps miss are computed one by one, those between them together.
void NhwcChannelRows::compute_row(int64_t image, int64_t row, const ConvRange& columns, const ConvRange& range,
                                  Place place) const {
  const ConvRange height = taps_inside(s_, 1, row);
  for (int64_t column = columns.begin; column < columns.end;) {
    const ConvRange width = taps_inside(s_, 2, column);
    const int64_t last = same_taps_end(s_, 2, {column, columns.end});
    const int64_t channels = s_.in_channels;
    NhwcChannels block = block_of(height, width, range, place);
    if (height.size() > 0 && width.size() > 0) {
      const int64_t y = row * s_.strides[1] - s_.pads[1] + height.begin * s_.dilations[1];
      const int64_t x = column * s_.strides[2] - s_.pads[2] + width.begin * s_.dilations[2];
      block.input = x_ + ((image * s_.in[1] + y) * s_.in[2] + x) * channels;
    }
    block.pixel_pitch = s_.strides[2] * channels;
    block.row_pitch = s_.dilations[1] * s_.in[2] * channels;
    block.column_pitch = s_.dilations[2] * channels;
    block.pixels = static_cast<size_t>(last - column);
    kernels().nhwc_channels(block);
    place.pixel += last - column;
    column = last;
  }
}

// Sums of these taps for some channels, but for what they read and the number of pixels.
NhwcChannels NhwcChannelRows::block_of(const ConvRange& height, const ConvRange& width, const ConvRange& range,
                                       const Place& place) const {
  NhwcChannels block{};
  block.height = static_cast<size_t>(width.size() == 0 ? 0 : height.size());
  block.width = static_cast<size_t>(width.size());
  block.weights = weights_ + (height.begin * s_.kernel[2] + width.begin) * s_.in_channels;
  block.weight_pitch = static_cast<size_t>(s_.kernel[2] * s_.in_channels);
  block.addends = addends_;
  block.out = results_ + place.pixel * s_.in_channels;
  block.target = place.target;
  block.target_pixel = static_cast<size_t>(place.pixel);
  block.channels = static_cast<size_t>(s_.in_channels);
  block.first = static_cast<size_t>(range.begin);
  block.last = static_cast<size_t>(range.end);
  return block;
}

}  // namespace onnxfuse
