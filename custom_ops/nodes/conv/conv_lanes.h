// Convolutions of single channels on the CPU with a channel in each lane of a vector: every lane is used however short
// the rows are, for the price of transposing what is read and written.
#ifndef ONNXFUSE_CONV_LANES_H_
#define ONNXFUSE_CONV_LANES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "convolution/conv_axis.h"

namespace onnxfuse {

class ConvLanes {
 public:
  // On vectors of `floats` elements.
  ConvLanes(const ConvGeometry& geometry, size_t floats);

  // Whether a convolution by channel can be computed so, and is then faster than in rows.
  static bool suits(const ConvGeometry& geometry, size_t floats);

  int64_t lanes() const { return lanes_; }
  int64_t strips() const { return strips_; }

  // Rows of the output.
  ConvRange strip(int64_t index) const;

  size_t memory_elements() const { return input_elements() + sums_elements() + weight_elements(); }
  // Of all lanes, with what vectors write behind them.
  size_t result_elements() const;

  // Computes the strip of `channels` channels, as many as there are lanes or fewer: `image` and `weights` are those of
  // the first, `end` is the end of the input, and `weights_end` that of the weights.  The results of all lanes follow
  // one another.
  void compute(const float* image, const float* end, const float* weights, const float* weights_end, int64_t channels,
               int64_t strip, float* memory, float* results) const;

 private:
  size_t input_elements() const;
  size_t sums_elements() const;
  size_t weight_elements() const;

  int64_t lanes_;
  ConvGeometry geometry_;
  int64_t strips_;
  int64_t rows_;          // of a strip
  int64_t rows_at_once_;  // whose sums are vectors of vectors
  int64_t width_;         // of a row of the input, with its padding
  std::vector<ptrdiff_t> offsets_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_CONV_LANES_H_
