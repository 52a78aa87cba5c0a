#include "nodes/nhwc_conv/nhwc_segments.h"

#include <algorithm>

#include "platform/integers.h"

namespace onnxfuse {
namespace {

void repeat_last(const float** segments, int64_t count) {
  std::fill(segments + count, segments + NhwcSegments::padded(count), segments[count - 1]);
}

}  // namespace

void NhwcSegments::find(const NhwcPixels& pixels) const {
  const int64_t count = pixels.count();
  const int64_t pitch = padded(count);
  for (int64_t row = 0; row < pixels.rows; ++row) {
    find_run(pixels.first + row * g_.out[2], pixels.row_pixels, pitch, to_ + row * pixels.row_pixels);
  }
  for (int64_t s = 0; s < plan_.segments; ++s) repeat_last(to_ + s * pitch, count);
}

const float* const* NhwcSegments::point(const float** to, const float* x, int64_t count, int64_t channels) {
  for (int64_t i = 0; i < count; ++i) to[i] = x + i * channels;
  repeat_last(to, count);
  return to;
}

// Those of pixels that follow one another, a pixel's `pitch` apart.
void NhwcSegments::find_run(int64_t first, int64_t count, int64_t pitch, const float** segments) const {
  const int64_t channels = g_.in_channels;
  if (plan_.taps == Taps::Own) {
    for (int64_t i = 0; i < count; ++i) segments[i] = x_ + (first + i) * channels;
    return;
  }
  const float* image = x_ + first / plan_.out_pixels * plan_.rows * plan_.columns * channels;
  int64_t row = first % plan_.out_pixels / g_.out[2];
  int64_t column = first % g_.out[2];
  for (int64_t i = 0; i < count;) {
    const ConvRange columns{column, std::min(column + count - i, g_.out[2])};
    find_row(image, row, columns, pitch, segments + i);
    i += columns.size();
    column = 0;
    if (++row < g_.out[1]) continue;
    row = 0;
    image += plan_.rows * plan_.columns * channels;
  }
}

// Those of a part of a row.
void NhwcSegments::find_row(const float* image, int64_t row, const ConvRange& columns, int64_t pitch,
                            const float** segments) const {
  const int64_t y = row * g_.strides[1] - plan_.pad_top;
  const bool inside = y >= 0 && y + (g_.kernel[1] - 1) * g_.dilations[1] < plan_.rows;
  const int64_t whole_begin = std::max(columns.begin, divide_up(plan_.pad_left, g_.strides[2]));
  const int64_t room = plan_.columns - 1 - plan_.reach + plan_.pad_left;
  const int64_t whole_end = room < 0 ? 0 : std::min(columns.end, room / g_.strides[2] + 1);
  if (!inside || whole_begin >= whole_end) return find_taps(image, row, columns, pitch, segments);
  find_taps(image, row, {columns.begin, whole_begin}, pitch, segments);
  find_taps(image, row, {whole_end, columns.end}, pitch, segments + (whole_end - columns.begin));
  const int64_t x = whole_begin * g_.strides[2] - plan_.pad_left;
  const float* const from = image + (y * plan_.columns + x) * g_.in_channels;
  const float** to = segments + (whole_begin - columns.begin);
  const int64_t step = g_.strides[2] * g_.in_channels;
  for (const ptrdiff_t offset : plan_.offsets) {
    for (int64_t i = 0; i < whole_end - whole_begin; ++i) to[i] = from + offset + i * step;
    to += pitch;
  }
}

// The same where taps may be outside of the image: each is a segment then.
void NhwcSegments::find_taps(const float* image, int64_t row, const ConvRange& columns, int64_t pitch,
                             const float** segments) const {
  for (int64_t column = columns.begin; column < columns.end; ++column) {
    find_pixel(image, row, column, pitch, segments++);
  }
}

void NhwcSegments::find_pixel(const float* image, int64_t row, int64_t column, int64_t pitch,
                              const float** segments) const {
  const int64_t y = row * g_.strides[1] - plan_.pad_top;
  const int64_t x = column * g_.strides[2] - plan_.pad_left;
  int64_t s = 0;
  for (int64_t h = 0; h < g_.kernel[1]; ++h) {
    const int64_t v = y + h * g_.dilations[1];
    for (int64_t w = 0; w < g_.kernel[2]; ++w, ++s) {
      const int64_t u = x + w * g_.dilations[2];
      const bool meets = v >= 0 && v < plan_.rows && u >= 0 && u < plan_.columns;
      segments[s * pitch] = meets ? image + (v * plan_.columns + u) * g_.in_channels : zeros_;
    }
  }
}

}  // namespace onnxfuse
