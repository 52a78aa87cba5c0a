#include "convolution/conv_axis.h"

#include <algorithm>
#include <utility>

#include "platform/integers.h"

namespace onnxfuse {
namespace {

void lay_out(ConvAxis* axis, bool shared) {
  const auto begin_of = [&](int64_t distance) { return shared ? distance % axis->stride : distance; };
  std::vector<int64_t> begins;
  for (const int64_t distance : axis->distance) begins.push_back(begin_of(distance));
  axis->planes = distinct(std::move(begins));
  axis->plane_of.clear();
  axis->shift_of.clear();
  for (const int64_t distance : axis->distance) {
    const auto plane = std::lower_bound(axis->planes.begin(), axis->planes.end(), begin_of(distance));
    axis->plane_of.push_back(static_cast<size_t>(plane - axis->planes.begin()));
    axis->shift_of.push_back((distance - *plane) / axis->stride);
  }
  axis->reach = *std::max_element(axis->shift_of.begin(), axis->shift_of.end());
}

}  // namespace

ConvRange ConvAxis::strip(int64_t index) const { return {index * length, std::min((index + 1) * length, places)}; }

ConvRange ConvAxis::positions(const ConvRange& range) const {
  return {std::max<int64_t>(range.begin * phases - crop, 0), std::min(range.end * phases - crop, out)};
}

ConvRange taps_inside(const ConvGeometry& g, size_t d, int64_t position) {
  const int64_t first = position * g.strides[d] - g.pads[d];
  if (first >= 0 && first + (g.kernel[d] - 1) * g.dilations[d] < g.in[d]) return {0, g.kernel[d]};  // most of them
  const int64_t begin = first < 0 ? divide_up(-first, g.dilations[d]) : 0;
  const int64_t end = first < g.in[d] ? (g.in[d] - 1 - first) / g.dilations[d] + 1 : 0;
  const int64_t last = std::min(end, g.kernel[d]);
  return {std::min(begin, last), last};
}

int64_t same_taps_end(const ConvGeometry& g, size_t d, const ConvRange& range) {
  if (taps_inside(g, d, range.begin).size() < g.kernel[d]) return range.begin + 1;
  const int64_t reach = (g.kernel[d] - 1) * g.dilations[d];
  return std::min(range.end, (g.in[d] - 1 - reach + g.pads[d]) / g.strides[d] + 1);
}

ConvAxis make_conv_axis(const ConvGeometry& g, size_t d) {
  ConvAxis axis;
  axis.in = g.in[d];
  axis.out = g.out[d];
  if (!g.transposed) {
    axis.places = g.out[d];
    axis.stride = g.strides[d];
    axis.pad = g.pads[d];
    for (int64_t k = 0; k < g.kernel[d]; ++k) axis.distance.push_back(k * g.dilations[d]);
    axis.phase.assign(axis.distance.size(), 0);
    return axis;
  }
  // Tap k takes element i of the input to position i * stride - pad + k * dilation.  Where there is one element, the
  // stride says nothing.
  axis.phases = g.in[d] == 1 ? 1 : g.strides[d];
  axis.crop = g.pads[d] % axis.phases;
  const int64_t first = g.pads[d] / axis.phases;
  axis.places = (g.out[d] - 1 + axis.crop) / axis.phases + 1;
  const int64_t farthest = (g.kernel[d] - 1) * g.dilations[d] / axis.phases;
  axis.pad = farthest - first;
  for (int64_t k = 0; k < g.kernel[d]; ++k) {
    axis.distance.push_back(farthest - k * g.dilations[d] / axis.phases);
    axis.phase.push_back(k * g.dilations[d] % axis.phases);
  }
  return axis;
}

void set_strip_length(ConvAxis* axis, int64_t length) {
  axis->length = length;
  axis->count = divide_up(axis->places, length);
  lay_out(axis, true);
  const auto apart = static_cast<int64_t>(distinct(axis->distance).size()) * length;
  if (apart < static_cast<int64_t>(axis->planes.size()) * axis->span()) lay_out(axis, false);
}

}  // namespace onnxfuse
