// A convolution's Programs as they run on parts of tensors, while these are in the caches.
#ifndef ONNXFUSE_CONV_EPILOGUE_H_
#define ONNXFUSE_CONV_EPILOGUE_H_

#include <cstddef>
#include <memory>

#include "conv_node.h"
#include "dtype.h"
#include "plan.h"
#include "program.h"

namespace onnxfuse {

struct ConvEpilogue {
  const Program* source = nullptr;  // as the node has it
  Program program;                  // the same without `bias`
  size_t bias = 0;                  // of the Program's inputs: added to the results of each channel first; 0: none
  std::shared_ptr<const Plan> plan;  // null: the Program computes values of several shapes
};

// For a convolution of `type` with this result, and the node's inputs of these shapes.
ConvEpilogue make_conv_epilogue(const ConvNode& node, DType type, const Program& program,
                                const std::vector<Shape>& inputs, const Shape& result);

// The plan for a prologue that runs on parts of X; null if it cannot.
std::shared_ptr<const Plan> make_conv_prologue(const ConvNode& node, const Program& program,
                                               const std::vector<Shape>& inputs);

}  // namespace onnxfuse

#endif  // ONNXFUSE_CONV_EPILOGUE_H_
