// Programs that reduce, written so that they take less time: results stay the same up to rounding.
#ifndef ONNXFUSE_SIMPLIFY_NEST_H_
#define ONNXFUSE_SIMPLIFY_NEST_H_

#include <vector>

#include "program/program.h"
#include "program/shape.h"

namespace onnxfuse {

// The Program in which elements are multiplied by the reciprocal of a value that reductions make, and not divided by it: where
// that is sure to be no number whose reciprocal is denormal or too large.
Program with_reciprocals(const Program& program);

// The Program in which what is reduced of one element is no reduction, and products and absolute values that are only
// reduced are computed by the reduction; values keep their numbers.
Program without_maps(const Program& program, const std::vector<Shape>& shapes);

}  // namespace onnxfuse

#endif  // ONNXFUSE_SIMPLIFY_NEST_H_
