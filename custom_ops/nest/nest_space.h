// The space of a Program that reduces: the shape of what it reduces, to which all its values are broadcast.
#ifndef ONNXFUSE_NEST_SPACE_H_
#define ONNXFUSE_NEST_SPACE_H_

#include <vector>

#include "nest/program_part.h"
#include "program/program.h"
#include "program/shape.h"

namespace onnxfuse {

// What is known of the shapes of a Program (resolve_shapes).
struct NestShapes {
  const Program& program;
  const std::vector<Shape>& inputs;
  const std::vector<Shape>& values;
};

// Whether two shapes are one, but for sizes of 1 before all others.
bool is_same(const Shape& a, const Shape& b);

// The broadcast of all values that are needed; false if there is none.
bool find_space(const NestShapes& shapes, const Phases& phases, Shape* space);

// Values that are computed before any block: those without reductions before them that are of another shape than the rows.
std::vector<bool> values_before(const NestShapes& shapes, const Phases& phases);

}  // namespace onnxfuse

#endif  // ONNXFUSE_NEST_SPACE_H_
