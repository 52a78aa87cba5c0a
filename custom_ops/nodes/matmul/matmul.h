// A product of a tensor with a constant matrix, and a Program for its result: MatMul, or a Gemm.
//
// Inputs: A [.., K], B, the Program's operands after the product.  Outputs are [.., N].  B is not as ONNX has it but
// [N / kNhwcBlock, K, kNhwcBlock], with zeros for columns that there are not.  So lie the weights of a 1x1 convolution with
// the channels last, of which the rows of A are the pixels: it computes the product.
#ifndef ONNXFUSE_MATMUL_H_
#define ONNXFUSE_MATMUL_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "nodes/nhwc_conv/nhwc_conv_plan.h"
#include "plan/plan.h"
#include "program/attribute_source.h"

namespace onnxfuse {

// Products of float32.
struct MatMul {
  int64_t columns = 0;  // N
  NhwcConv conv;        // with the Program as its epilogue; how many channels there are the shapes say
};

// Reads and validates the attributes of a node with this many inputs; nothing in them is trusted.  On failure returns
// false and sets `error`.
bool read_matmul(const AttributeSource& source, size_t inputs, MatMul* node, std::string* error);

// False if the shapes do not fit the node; then `error` says why.
bool make_matmul_plan(const MatMul& node, const PlanKey& key, NhwcConvPlan* plan, std::string* error);

}  // namespace onnxfuse

#endif  // ONNXFUSE_MATMUL_H_
