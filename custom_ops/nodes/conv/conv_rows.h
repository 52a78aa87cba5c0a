// Convolutions of single channels on the CPU that read their input where it lies: no copy is made, and taps that meet the
// padding above and below an image are left out.
#ifndef ONNXFUSE_CONV_ROWS_H_
#define ONNXFUSE_CONV_ROWS_H_

#include <cstddef>
#include <cstdint>

#include "convolution/conv_axis.h"
#include "kernels/kernels.h"

namespace onnxfuse {

class ConvRows {
 public:
  explicit ConvRows(const ConvGeometry& geometry);

  // Whether a convolution by channel can be computed so, on vectors of `floats` elements, at least half of which are used:
  // in one or two dimensions, with strides up to 2, and along short rows without one.
  static bool suits(const ConvGeometry& geometry, size_t floats);

  int64_t strips() const { return strips_; }

  // Rows of the output.
  ConvRange strip(int64_t index) const;

  // Channels whose results of a strip stay in the level 1 cache until the epilogue has read them.
  int64_t channels_at_once() const { return channels_at_once_; }

  // Of so many channels, with what is written behind them and a row of zeros.
  size_t result_elements() const;

  // Computes the strip of `channels` channels: `image` and `weights` are those of the first.  The results begin with the
  // channels' `bias`, or with 0 if that is null, and follow one another.  `target` is where the first channel goes in the
  // end; null if that does not matter.
  void compute(const float* image, const float* weights, const float* bias, int64_t channels, int64_t strip,
               float* results, const float* target) const;

 private:
  size_t zeros_at() const;

  ConvRowsBlock block_;  // but for what differs between channels and strips
  int64_t rows_;         // of the output
  int64_t strips_;
  int64_t strip_rows_;
  int64_t channels_at_once_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_CONV_ROWS_H_
