// A convolution's Programs as they run on parts of tensors, while these are in the caches.
#ifndef ONNXFUSE_CONV_EPILOGUE_H_
#define ONNXFUSE_CONV_EPILOGUE_H_

#include <cstddef>
#include <memory>
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

// Whether a number that a Program computes with is denormal: a constant, or an input after the first of one element.  Such a
// Program runs without DenormalsAsZeros.
bool computes_denormals(const Program& program, const Shape* shapes, const void* const* inputs);

}  // namespace onnxfuse

#endif  // ONNXFUSE_CONV_EPILOGUE_H_
