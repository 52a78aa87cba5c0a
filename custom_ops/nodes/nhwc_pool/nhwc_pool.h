// MaxPool and AveragePool of tensors whose channels come last, [N, spatial…, C], as the output's do: float32, over one
// spatial dimension or two.
#ifndef ONNXFUSE_NHWC_POOL_H_
#define ONNXFUSE_NHWC_POOL_H_

#include <string>

#include "convolution/conv.h"
#include "plan/plan.h"
#include "program/attribute_source.h"
#include "program/shape.h"
#include "runtime/executor.h"

namespace onnxfuse {

struct NhwcPool {
  bool maximum = true;          // else the mean
  bool rounds_up = false;       // ceil_mode
  bool counts_padding = false;  // count_include_pad
  ConvAttributes windows;       // kernel, strides, dilations and pads alone

  int rank() const { return static_cast<int>(windows.spatial_rank()) + 2; }
};

// Reads and validates the attributes of a node with this many inputs; nothing in them is trusted.  On failure returns
// false and sets `error`.
bool read_nhwc_pool(const AttributeSource& source, size_t inputs, NhwcPool* node, std::string* error);

// The output's size in spatial dimension `d` for an input of `size` there.  False if one of them has no element, or the
// output's is too large.
bool pool_output_size(const NhwcPool& node, size_t d, int64_t size, int64_t* output);

// How a node runs on an input of a certain shape.
struct NhwcPoolPlan {
  PlanKey key;            // of the node's input
  ConvGeometry geometry;  // of windows that compute each channel from its own
  ConvGeometry counted;   // the same over what a mean counts: the image, or its padding too
  Shape output;
  int64_t pixels = 0;     // of all images
  int64_t tasks = 1;
};

// False if the shape does not fit the node; then `error` says why.
bool make_nhwc_pool_plan(const NhwcPool& node, const PlanKey& key, NhwcPoolPlan* plan, std::string* error);

void run_nhwc_pool(const NhwcPool& node, const NhwcPoolPlan& plan, const void* input, void* output,
                   const Host& host);

}  // namespace onnxfuse

#endif  // ONNXFUSE_NHWC_POOL_H_
