#include "nodes/nhwc_conv/nhwc_copies.h"

#include <algorithm>

#include "kernels/kernels.h"
#include "platform/integers.h"
#include "runtime/parts.h"

namespace onnxfuse {
namespace {

// Pixels of which one unit changes the layout.
constexpr int64_t kCopiedPixels = 128;

// Some pixels of an image of X with the channels last.
void copy_pixels(const NhwcConvPlan& plan, const float* x, int64_t unit, float* to) {
  const int64_t units = divide_up(plan.in_pixels, kCopiedPixels);
  const int64_t image = unit / units;
  const int64_t first = unit % units * kCopiedPixels;
  const auto count = static_cast<size_t>(std::min(kCopiedPixels, plan.in_pixels - first));
  const int64_t channels = plan.geometry.in_channels;
  kernels().transpose_rows(to + (image * plan.in_pixels + first) * channels, static_cast<size_t>(channels),
                           x + image * channels * plan.in_pixels + first, static_cast<size_t>(plan.in_pixels),
                           static_cast<size_t>(channels), count);
}

// A row of an image of X with the channels last and the padding.
void copy_row(const NhwcConvPlan& plan, bool nhwc, const float* x, int64_t unit, float* to) {
  const ConvGeometry& g = plan.geometry;
  const int64_t channels = g.in_channels;
  const int64_t image = unit / plan.rows;
  const int64_t row = unit % plan.rows - g.pads[1];
  to += unit * plan.columns * channels;
  const int64_t left = std::min(g.pads[2], plan.columns);
  const int64_t inside = row < 0 || row >= g.in[1] ? 0 : std::clamp<int64_t>(plan.columns - left, 0, g.in[2]);
  std::fill_n(to, left * channels, 0.0f);
  std::fill(to + (left + inside) * channels, to + plan.columns * channels, 0.0f);
  if (inside == 0) return;
  float* const first = to + left * channels;
  if (nhwc) {
    std::copy_n(x + (image * g.in[1] + row) * g.in[2] * channels, inside * channels, first);
  } else {
    const float* const from = x + image * channels * plan.in_pixels + row * g.in[2];
    kernels().transpose_rows(first, static_cast<size_t>(channels), from, static_cast<size_t>(plan.in_pixels),
                             static_cast<size_t>(channels), static_cast<size_t>(inside));
  }
}

}  // namespace

RunMemory copy_input(const NhwcConvPlan& plan, bool nhwc, const Host& host, const float** x) {
  if (!plan.copies) return {};
  const ConvGeometry& g = plan.geometry;
  RunMemory memory(host, static_cast<size_t>(g.batch * plan.rows * plan.columns * g.in_channels) * sizeof(float));
  auto* const to = static_cast<float*>(memory.data());
  const int64_t units = g.batch * (plan.taps == Taps::Padded ? plan.rows : divide_up(plan.in_pixels, kCopiedPixels));
  const auto copy = [&](int64_t unit) {
    plan.taps == Taps::Padded ? copy_row(plan, nhwc, *x, unit, to) : copy_pixels(plan, *x, unit, to);
  };
  run_parts(host, units, copy, plan.alone);
  *x = to;
  return memory;
}

void copy_planes(const NhwcConvPlan& plan, const float* x, int64_t image, int64_t row, float* to) {
  const ConvGeometry& g = plan.geometry;
  const int64_t columns = plan.plane_columns;
  const int64_t left = std::min(g.pads[2], columns);
  const int64_t inside = std::clamp<int64_t>(columns - left, 0, g.in[2]);
  for (int64_t c = 0; c < g.in_channels; ++c) {
    const float* const plane = x + (image * g.in_channels + c) * plan.in_pixels;
    for (int64_t h = 0; h < g.kernel[1]; ++h, to += columns) {
      const int64_t y = row * g.strides[1] - g.pads[1] + h * g.dilations[1];
      if (y < 0 || y >= g.in[1]) {
        std::fill_n(to, columns, 0.0f);
        continue;
      }
      std::fill_n(to, left, 0.0f);
      std::copy_n(plane + y * g.in[2], inside, to + left);
      std::fill(to + left + inside, to + columns, 0.0f);
    }
  }
}

}  // namespace onnxfuse
