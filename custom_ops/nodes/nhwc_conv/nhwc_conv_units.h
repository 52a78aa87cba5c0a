// Into which units the work of convolutions with the channels last is divided, by what it costs.
#ifndef ONNXFUSE_NHWC_CONV_UNITS_H_
#define ONNXFUSE_NHWC_CONV_UNITS_H_

#include <cstdint>

#include "nodes/nhwc_conv/nhwc_conv_plan.h"

namespace onnxfuse {

// Results of a unit of single channels, or of whole rows, that stay in the level 2 cache.
constexpr int64_t kRowResults = 65536;
// Pixels of a unit are whole tiles of most sizes (nhwc_kernels.inc).
constexpr int64_t kTilePixels = 8;

// For a plan of which all else but memory is decided.  `straight` says whether results may go straight to the output, which
// the units may rule out.
void divide_work(const NhwcConv& node, const NhwcShapes& shapes, NhwcConvPlan* plan, bool* straight);

}  // namespace onnxfuse

#endif  // ONNXFUSE_NHWC_CONV_UNITS_H_
