#include "conv_host.h"

#include <algorithm>
#include <algorithm>
#include <vector>

#include "half.h"

namespace onnxfuse {
namespace {

struct Float {
  using Stored = float;
  static float widen(float x) { return x; }
  static float narrow(float x) { return x; }
};

struct Half {
  using Stored = uint16_t;
  static float widen(uint16_t x) { return baseline::math::f16_to_f32(x); }
  static uint16_t narrow(float x) { return baseline::math::f32_to_f16(x); }
};

struct BrainFloat {
  using Stored = uint16_t;
  static float widen(uint16_t x) { return baseline::math::bf16_to_f32(x); }
  static uint16_t narrow(float x) { return baseline::math::f32_to_bf16(x); }
};

template <class Type>
class Convolver {
 public:
  using Stored = typename Type::Stored;

  Convolver(const ConvGeometry& geometry, const void* input, const void* weights, void* output)
      : geometry_(geometry),
        input_(static_cast<const Stored*>(input)),
        weights_(static_cast<const Stored*>(weights)),
        output_(static_cast<Stored*>(output)) {}

  size_t rows() const {
    return static_cast<size_t>(geometry_.batch * geometry_.out_channels * geometry_.out[0] * geometry_.out[1]);
  }

  // One row of the output along its last dimension.
  void row(size_t number) const {
    const ConvGeometry& g = geometry_;
    auto rest = static_cast<int64_t>(number);
    const int64_t h = rest % g.out[1];
    rest /= g.out[1];
    const int64_t d = rest % g.out[0];
    rest /= g.out[0];
    const int64_t m = rest % g.out_channels;
    const int64_t n = rest / g.out_channels;
    const int64_t channels = g.in_channels / g.group;
    const int64_t filters = g.out_channels / g.group;
    const int64_t first = m / filters * channels;
    std::vector<double> sums(static_cast<size_t>(g.out[2]), 0.0);
    for (int64_t c = 0; c < channels; ++c) {
      const Stored* const image = input_ + (n * g.in_channels + first + c) * g.in[0] * g.in[1] * g.in[2];
      const int64_t filter = g.transposed ? (first + c) * filters + m % filters : m * channels + c;
      const Stored* weight = weights_ + filter * g.kernel[0] * g.kernel[1] * g.kernel[2];
      for (int64_t kd = 0; kd < g.kernel[0]; ++kd) {
        for (int64_t kh = 0; kh < g.kernel[1]; ++kh, weight += g.kernel[2]) {
          const int64_t from_d = source(0, d, kd);
          const int64_t from_h = source(1, h, kh);
          if (from_d < 0 || from_h < 0) continue;
          add(image + (from_d * g.in[1] + from_h) * g.in[2], weight, &sums);
        }
      }
    }
    Stored* const out = output_ + static_cast<int64_t>(number) * g.out[2];
    for (size_t w = 0; w < sums.size(); ++w) out[w] = Type::narrow(static_cast<float>(sums[w]));
  }

 private:
  // The place in the input that element `k` of the kernel meets for place `at` of the output; -1 if there is none.
  int64_t source(size_t d, int64_t at, int64_t k) const {
    const ConvGeometry& g = geometry_;
    int64_t place = at * g.strides[d] - g.pads[d] + k * g.dilations[d];
    if (g.transposed) {
      place = at + g.pads[d] - k * g.dilations[d];
      if (place % g.strides[d] != 0) return -1;
      place /= g.strides[d];
    }
    return place >= 0 && place < g.in[d] ? place : -1;
  }

  // Adds a row of the kernel over a row of the input.  Output and input lie a stride apart: Conv goes through the output,
  // ConvTranspose through the input.
  void add(const Stored* input, const Stored* weights, std::vector<double>* sums) const {
    const ConvGeometry& g = geometry_;
    const int64_t stride = g.strides[2];
    const int64_t near = g.transposed ? g.in[2] : g.out[2];
    const int64_t far = g.transposed ? g.out[2] : g.in[2];
    for (int64_t k = 0; k < g.kernel[2]; ++k) {
      const double weight = Type::widen(weights[k]);
      const int64_t shift = k * g.dilations[2] - g.pads[2];
      const int64_t begin = shift < 0 ? (-shift + stride - 1) / stride : 0;
      const int64_t end = shift < far ? std::min(near, (far - shift - 1) / stride + 1) : 0;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t j = i * stride + shift;
        const int64_t to = g.transposed ? j : i;
        const int64_t from = g.transposed ? i : j;
        (*sums)[static_cast<size_t>(to)] += weight * static_cast<double>(Type::widen(input[from]));
      }
    }
  }

  const ConvGeometry& geometry_;
  const Stored* const input_;
  const Stored* const weights_;
  Stored* const output_;
};

template <class Type>
void run(const Convolver<Type>& convolver, ParallelFor parallel_for, void* context) {
  const auto row = [](void* data, size_t number) { static_cast<const Convolver<Type>*>(data)->row(number); };
  parallel_for(context, row, convolver.rows(), const_cast<Convolver<Type>*>(&convolver));
}

}  // namespace

void convolve(const ConvGeometry& geometry, DType type, const void* input, const void* weights, void* output,
              ParallelFor parallel_for, void* context) {
  int64_t count = 0;
  if (!element_count(geometry.output, &count) || count == 0) return;
  switch (type) {
    case DType::f16:
      return run(Convolver<Half>(geometry, input, weights, output), parallel_for, context);
    case DType::bf16:
      return run(Convolver<BrainFloat>(geometry, input, weights, output), parallel_for, context);
    default:
      return run(Convolver<Float>(geometry, input, weights, output), parallel_for, context);
  }
}

}  // namespace onnxfuse
