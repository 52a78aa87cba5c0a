// Into which units the work of convolutions with the channels last is divided, by what it costs.
#ifndef ONNXFUSE_NHWC_CONV_UNITS_H_
#define ONNXFUSE_NHWC_CONV_UNITS_H_

#include <cstdint>

#include "nodes/nhwc_conv/nhwc_conv_plan.h"

namespace onnxfuse {

// For a plan of which all else but memory is decided.  `straight` says whether results may go straight to the output, which
// the units may rule out.
void divide_work(const NhwcConv& node, const NhwcShapes& shapes, NhwcConvPlan* plan, bool* straight);

}  // namespace onnxfuse

#endif  // ONNXFUSE_NHWC_CONV_UNITS_H_
