// A Concat of float32 tensors along their last dimension, as one of channels is where these come last.  ONNX Runtime's runs on
// one thread, and calls for a copy of each run of elements by itself.
#ifndef ONNXFUSE_NHWC_CONCAT_H_
#define ONNXFUSE_NHWC_CONCAT_H_

#include <string>
#include <vector>

#include "plan/plan.h"
#include "program/shape.h"
#include "runtime/host.h"

namespace onnxfuse {

struct NhwcConcat {};  // has no attributes

// How a node runs on inputs of certain shapes.
struct NhwcConcatPlan {
  PlanKey key;  // of the node's inputs
  Shape output;
  int64_t rows = 0;  // all dimensions but the last, 0 if there are no elements
  int64_t tasks = 1;
};

// False unless there are inputs, which differ in their last dimension alone; then `error` says why.
bool make_nhwc_concat_plan(const PlanKey& key, NhwcConcatPlan* plan, std::string* error);

void run_nhwc_concat(const NhwcConcatPlan& plan, const std::vector<const void*>& inputs, void* output, const Host& host);

}  // namespace onnxfuse

#endif  // ONNXFUSE_NHWC_CONCAT_H_
