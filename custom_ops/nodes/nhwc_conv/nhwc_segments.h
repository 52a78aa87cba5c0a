// Where the sums of a convolution with the channels last read: a pointer for each segment of each pixel.
#ifndef ONNXFUSE_NHWC_SEGMENTS_H_
#define ONNXFUSE_NHWC_SEGMENTS_H_

#include <cstdint>

#include "convolution/conv_axis.h"
#include "nodes/nhwc_conv/nhwc_conv_plan.h"

namespace onnxfuse {

// Some pixels of a result: rows of so many, a row of the image apart.  `first` is counted through all images.
struct NhwcPixels {
  int64_t first;
  int64_t row_pixels;
  int64_t rows = 1;
  int64_t count() const { return row_pixels * rows; }
};

class NhwcSegments {
 public:
  // For the image `x` that the plan reads.  `to` has room for the pointers of a unit, and `zeros` are a segment.
  NhwcSegments(const NhwcConvPlan& plan, const float* x, const float** to, const float* zeros)
      : plan_(plan), g_(plan.geometry), x_(x), to_(to), zeros_(zeros) {}

  const float* const* data() const { return to_; }

  // Pixels as kernels compute them: the last one perhaps several times.
  static int64_t padded(int64_t pixels) { return static_cast<int64_t>(whole_nhwc_pixels(static_cast<size_t>(pixels))); }

  // Those of pixels.
  void find(const NhwcPixels& pixels) const;

  // Those of a product of `count` pixels that follow one another from `x` on; and in any memory, for so many channels.
  void point_to(const float* x, int64_t count) const { point(to_, x, count, g_.in_channels); }
  static const float* const* point(const float** to, const float* x, int64_t count, int64_t channels);

 private:
  void find_run(int64_t first, int64_t count, int64_t pitch, const float** segments) const;
  void find_row(const float* image, int64_t row, const ConvRange& columns, int64_t pitch, const float** segments) const;
  void find_taps(const float* image, int64_t row, const ConvRange& columns, int64_t pitch, const float** segments) const;
  void find_pixel(const float* image, int64_t row, int64_t column, int64_t pitch, const float** segments) const;

  const NhwcConvPlan& plan_;
  const ConvGeometry& g_;
  const float* const x_;
  const float** const to_;
  const float* const zeros_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_NHWC_SEGMENTS_H_
