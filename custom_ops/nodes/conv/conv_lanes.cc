#include "nodes/conv/conv_lanes.h"

#include <algorithm>
#include <numeric>

#include "kernels/kernels.h"
#include "platform/integers.h"

namespace onnxfuse {
namespace {

// A strip's rows, as vectors, should stay in the caches next to the processor.
constexpr int64_t kInputFloats = 12288;

int64_t reach(const ConvGeometry& g, size_t d) { return (g.kernel[d] - 1) * g.dilations[d]; }

// Rows and columns of the input that so many of the output read.
int64_t extent(const ConvGeometry& g, size_t d, int64_t results) {
  return (results - 1) * g.strides[d] + reach(g, d) + 1;
}

}  // namespace

bool ConvLanes::suits(const ConvGeometry& g, size_t floats) {
  const auto lanes = static_cast<int64_t>(floats);
  if (g.group < lanes) return false;
  if (g.in[0] != 1 || g.out[0] != 1 || g.kernel[0] != 1 || g.pads[0] != 0) return false;
  if (g.out[2] > 4096 || reach(g, 1) > 4096 || reach(g, 2) > 4096) return false;
  // Longer rows have few lanes that are not used.  Every second element has to be picked out in any case.
  if (g.out[2] > (g.strides[2] == 1 ? lanes * 3 / 2 : lanes * 4)) return false;
  return extent(g, 2, g.out[2]) * extent(g, 1, 1) * lanes <= kInputFloats;
}

ConvLanes::ConvLanes(const ConvGeometry& geometry, size_t floats)
    : lanes_(static_cast<int64_t>(floats)), geometry_(geometry), width_(extent(geometry, 2, geometry.out[2])) {
  const int64_t room = kInputFloats / (width_ * lanes_);
  const int64_t fitting = (room - reach(geometry, 1) - 1) / geometry.strides[1] + 1;
  const int64_t most = std::clamp<int64_t>(fitting, 1, geometry.out[1]);
  strips_ = divide_up(geometry.out[1], most);
  rows_ = divide_up(geometry.out[1], strips_);
  rows_at_once_ = std::min(lanes_ / std::gcd(geometry.out[2], lanes_), rows_);
  strips_ = divide_up(geometry.out[1], rows_);
  for (int64_t h = 0; h < geometry.kernel[1]; ++h) {
    for (int64_t w = 0; w < geometry.kernel[2]; ++w) {
      offsets_.push_back((h * geometry.dilations[1] * width_ + w * geometry.dilations[2]) * lanes_);
    }
  }
}

ConvRange ConvLanes::strip(int64_t index) const {
  return {index * rows_, std::min((index + 1) * rows_, geometry_.out[1])};
}

size_t ConvLanes::input_elements() const {
  // Vectors of vectors are written whole.
  return static_cast<size_t>((extent(geometry_, 1, rows_) * width_ + lanes_) * lanes_);
}

size_t ConvLanes::sums_elements() const {
  return static_cast<size_t>(round_up(rows_at_once_ * geometry_.out[2], lanes_) * lanes_);
}

size_t ConvLanes::result_elements() const {
  return static_cast<size_t>(rows_ * geometry_.out[2] * lanes_) + kMaxFloats;
}

size_t ConvLanes::weight_elements() const {
  return static_cast<size_t>(round_up(static_cast<int64_t>(offsets_.size()), lanes_) * lanes_);
}

void ConvLanes::compute(const float* image, const float* end, const float* weights, const float* weights_end,
                        int64_t channels, int64_t strip, float* memory, float* results) const {
  const ConvGeometry& g = geometry_;
  const KernelTable& table = kernels();
  const auto used = static_cast<size_t>(channels);
  float* const input = memory;
  float* const sums = input + input_elements();
  float* const taps = sums + sums_elements();
  table.take_lanes(taps, weights, offsets_.size(), used, offsets_.size(), weights_end);

  const ConvRange rows = this->strip(strip);
  const int64_t left = std::min(g.pads[2], width_);
  const int64_t inside = std::clamp<int64_t>(std::min(g.in[2], width_ - left), 0, width_);
  const int64_t row = width_ * lanes_;
  for (int64_t r = 0; r < extent(g, 1, rows.size()); ++r) {
    const int64_t from = rows.begin * g.strides[1] - g.pads[1] + r;
    float* const to = input + r * row;
    if (from < 0 || from >= g.in[1] || inside == 0) {
      std::fill_n(to, row, 0.0f);
      continue;
    }
    std::fill_n(to, left * lanes_, 0.0f);
    table.take_lanes(to + left * lanes_, image + from * g.in[2], static_cast<size_t>(g.in[1] * g.in[2]), used,
                     static_cast<size_t>(inside), end);
    std::fill(to + (left + inside) * lanes_, to + row, 0.0f);
  }
  ConvLanesRow block;
  block.weights = taps;
  block.offsets = offsets_.data();
  block.taps = offsets_.size();
  block.step = static_cast<size_t>(g.strides[2] * lanes_);
  block.columns = static_cast<size_t>(g.out[2]);
  const int64_t size = rows.size() * g.out[2];
  // Rows are put in their places a few at a time, whole vectors of them, from the last to the first: what vectors write
  // behind the last is overwritten by the next lane's.
  for (int64_t end_row = rows.size(); end_row > 0;) {
    const int64_t first = (end_row - 1) / rows_at_once_ * rows_at_once_;
    for (int64_t r = first; r < end_row; ++r) {
      block.input = input + r * g.strides[1] * row;
      block.out = sums + (r - first) * g.out[2] * lanes_;
      table.conv_lanes(block);
    }
    table.put_lanes(results + first * g.out[2], static_cast<size_t>(size), sums,
                    static_cast<size_t>((end_row - first) * g.out[2]));
    end_row = first;
  }
}

}  // namespace onnxfuse
