// Small tensors of the fuzz drivers, and the plain sums that results are held against.
#ifndef ONNXFUSE_FUZZ_TENSORS_H_
#define ONNXFUSE_FUZZ_TENSORS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "convolution/conv.h"
#include "program/shape.h"
#include "tests/fuzz/fuzz_host.h"
#include "tests/fuzz/fuzz_random.h"

namespace fuzz {

using namespace onnxfuse;

constexpr int64_t kMostElements = 100'000;

// The elements of a tensor that is small enough to have memory, or -1.
inline int64_t count_of(const Shape& shape, int64_t most = kMostElements) {
  int64_t count = 0;
  return element_count(shape, &count) && count <= most ? count : -1;
}

inline std::unique_ptr<float[]> memory_of(int64_t count) {
  return std::make_unique<float[]>(static_cast<size_t>(count));
}

inline std::unique_ptr<float[]> integers(int64_t count) {
  auto made = memory_of(count);
  for (int64_t i = 0; i < count; ++i) made[static_cast<size_t>(i)] = static_cast<float>(below(7)) - 3.0f;
  return made;
}

// The element of an input that element `i` of the space is made of.
inline size_t place_in(const Shape& input, const Shape& space, int64_t i) {
  int64_t place = 0;
  int64_t step = 1;
  for (int d = 0; d < space.rank; i /= space.from_back(d++)) {
    if (input.from_back(d) > 1) place += i % space.from_back(d) * step;
    step *= input.from_back(d);
  }
  return static_cast<size_t>(place);
}

// What place `k` of the kernel adds for element `i` of the input goes to this place of the output, -1 for none.
inline int64_t place_of(const ConvGeometry& g, size_t d, int64_t i, int64_t k) {
  int64_t place = 0;
  if (g.transposed) {
    place = i * g.strides[d] - g.pads[d] + k * g.dilations[d];
  } else {
    const int64_t distance = i + g.pads[d] - k * g.dilations[d];
    if (distance % g.strides[d] != 0) return -1;
    place = distance / g.strides[d];
  }
  return place >= 0 && place < g.out[d] ? place : -1;
}

// By the definition: every element of the input goes wherever an element of the kernel takes it.
inline std::unique_ptr<float[]> plain_sums(const ConvGeometry& g, const float* x, const float* w) {
  auto sums = memory_of(g.batch * g.out_channels * g.out[0] * g.out[1] * g.out[2]);
  const int64_t channels = g.in_channels / g.group;
  const int64_t filters = g.out_channels / g.group;
  const int64_t taps = g.kernel[0] * g.kernel[1] * g.kernel[2];
  for (int64_t n = 0; n < g.batch; ++n) {
    for (int64_t c = 0; c < g.in_channels; ++c) {
      const int64_t group = c / channels;
      for (int64_t i = 0; i < g.in[0] * g.in[1] * g.in[2]; ++i) {
        const float value = *x++;
        for (int64_t k = 0; k < taps; ++k) {
          const int64_t d = place_of(g, 0, i / g.in[2] / g.in[1], k / g.kernel[2] / g.kernel[1]);
          const int64_t h = place_of(g, 1, i / g.in[2] % g.in[1], k / g.kernel[2] % g.kernel[1]);
          const int64_t v = place_of(g, 2, i % g.in[2], k % g.kernel[2]);
          if (d < 0 || h < 0 || v < 0) continue;
          for (int64_t m = group * filters; m < (group + 1) * filters; ++m) {
            const int64_t filter = g.transposed ? c * filters + m % filters : m * channels + c % channels;
            const int64_t at = (((n * g.out_channels + m) * g.out[0] + d) * g.out[1] + h) * g.out[2] + v;
            sums[static_cast<size_t>(at)] += value * w[filter * taps + k];
          }
        }
      }
    }
  }
  return sums;
}

}  // namespace fuzz

#endif  // ONNXFUSE_FUZZ_TENSORS_H_
