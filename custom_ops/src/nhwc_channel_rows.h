// Sums of single channels of tensors whose channels come last: of rows, or parts of them.
#ifndef ONNXFUSE_NHWC_CHANNEL_ROWS_H_
#define ONNXFUSE_NHWC_CHANNEL_ROWS_H_

#include <cstdint>

#include "conv_axis.h"
#include "kernels.h"
#include "nhwc_conv_plan.h"

namespace onnxfuse {

class NhwcChannelRows {
 public:
  // The plan's convolution of single channels of `x`.  `results` is where those of a unit go, and `padded` has room for
  // the copies of rows that the plan may want.
  NhwcChannelRows(const NhwcConvPlan& plan, const float* x, const float* weights, const float* addends, float* results,
                  float* padded)
      : plan_(plan), s_(plan.single), x_(x), weights_(weights), addends_(addends), results_(results), padded_(padded) {}

  // Which pixel of a unit's results the first one is, how far rows are apart, and where they go instead if it is not null.
  struct Place {
    int64_t pixel;
    int64_t pitch;
    const TileTarget* target;
  };

  // All channels of a part of some rows.
  void compute(int64_t image, const ConvRange& rows, const ConvRange& columns, const Place& place) const;

 private:
  void pad_rows(int64_t image, const ConvRange& rows, const ConvRange& columns, const ConvRange& channels) const;
  void compute_padded_row(int64_t row, int64_t first_row, const ConvRange& columns, const ConvRange& channels,
                          const Place& place) const;
  void compute_row(int64_t image, int64_t row, const ConvRange& columns, const ConvRange& range, Place place) const;
  NhwcChannels block_of(const ConvRange& height, const ConvRange& width, const ConvRange& range,
                        const Place& place) const;

  const NhwcConvPlan& plan_;
  const ConvGeometry& s_;
  const float* const x_;
  const float* const weights_;
  const float* const addends_;
  float* const results_;
  float* const padded_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_NHWC_CHANNEL_ROWS_H_
