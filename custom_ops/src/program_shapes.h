// The shapes of a Program's values, once those of its inputs are known.
#ifndef ONNXFUSE_PROGRAM_SHAPES_H_
#define ONNXFUSE_PROGRAM_SHAPES_H_

#include <string>
#include <vector>

#include "program.h"
#include "shape.h"

namespace onnxfuse {

// Sets `shapes` to the shape of every value, by id; an input along an axis has the shape in which it broadcasts, such
// as [3,1,1].  False if the inputs' shapes do not fit; then `error` says why, naming the line of the Program.
bool resolve_shapes(const Program& program, const std::vector<Shape>& inputs, std::vector<Shape>* shapes,
                    std::string* error);

}  // namespace onnxfuse

#endif  // ONNXFUSE_PROGRAM_SHAPES_H_
