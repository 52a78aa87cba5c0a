// A convolution's Programs as they run on parts of tensors, while these are in the caches.
#ifndef ONNXFUSE_CONV_EPILOGUE_H_
#define ONNXFUSE_CONV_EPILOGUE_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "plan/plan.h"
#include "program/dtype.h"
#include "program/program.h"
#include "program/shape.h"

namespace onnxfuse {

struct ConvEpilogue {
  const Program* source = nullptr;  // as the node has it
  Program program;                  // the same without `bias`
  size_t bias = 0;                  // of the Program's inputs: added to the results of each channel first; 0: none
  std::shared_ptr<const Plan> plan;  // null: the Program computes values of several shapes
};

// For a convolution of `type`.  The Program's inputs have these shapes, the result first, whose channels are along `axis`.
ConvEpilogue make_conv_epilogue(DType type, const Program& program, std::vector<Shape> shapes, int axis);

// The plan of a Program that runs on parts of its first input, and of its outputs; null if it computes values of several
// shapes.
std::shared_ptr<const Plan> make_plan_of_parts(const Program& program, std::vector<Shape> shapes);

// The numbers that a node's Programs compute with.  Where one is denormal they run without DenormalsAsZeros.
struct ProgramNumbers {
  bool denormal = false;                          // whether a constant is
  std::vector<std::pair<size_t, DType>> inputs;  // of the node, those of one element

  // Takes those of a Program whose operands, after the first, are the node's inputs from `first` on.
  void add(const Program& program, const std::vector<Shape>& shapes, size_t first);
  bool any_denormal(const void* const* data) const;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_CONV_EPILOGUE_H_
