// Copies of what convolutions with the channels last read, where they do not read X itself.
#ifndef ONNXFUSE_NHWC_COPIES_H_
#define ONNXFUSE_NHWC_COPIES_H_

#include <cstdint>

#include "nodes/nhwc_conv/nhwc_conv_plan.h"
#include "runtime/host.h"

namespace onnxfuse {

// Makes the copy that the plan reads in place of X, if it reads one, and points `x` to it.  `nhwc` says whether X has the
// channels last.
RunMemory copy_input(const NhwcConvPlan& plan, bool nhwc, const Host& host, const float** x);

// Of a plan that reads planes: the rows of X that a row of results reads, with zeros for what lies outside.
void copy_planes(const NhwcConvPlan& plan, const float* x, int64_t image, int64_t row, float* to);

}  // namespace onnxfuse

#endif  // ONNXFUSE_NHWC_COPIES_H_
