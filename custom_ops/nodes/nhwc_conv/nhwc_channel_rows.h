// Sums of single channels of tensors whose channels come last: of rows, or parts of them.
#ifndef ONNXFUSE_NHWC_CHANNEL_ROWS_H_
#define ONNXFUSE_NHWC_CHANNEL_ROWS_H_

#include <cstdint>

#include "convolution/conv_axis.h"
#include "nodes/nhwc_conv/nhwc_conv_plan.h"

namespace onnxfuse {

class NhwcChannelRows {
 public:
  // The plan's convolution of single channels.
  NhwcChannelRows(const NhwcConvPlan& plan, const float* weights, const float* addends)
      : s_(plan.single), weights_(weights), addends_(addends) {}

  // Where results go: within bounds to `out`, or to `target` if it is not null.  Which pixel of it the first one is, and how
  // far rows are apart.
  struct Place {
    float* out;
    const TileTarget* target;
    Bounds bounds;
    int64_t pixel;
    int64_t pitch;
  };

  // All channels of a part of some rows, of a tensor of which as much is at `x` as they read.
  void compute(const float* x, int64_t image, const ConvRange& rows, const ConvRange& columns, const Place& place) const;

 private:
  const ConvGeometry& s_;
  const float* const weights_;
  const float* const addends_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_NHWC_CHANNEL_ROWS_H_
