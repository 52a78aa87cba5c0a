// The shapes of a Program's values, once those of its inputs are known.
#ifndef ONNXFUSE_PROGRAM_SHAPES_H_
#define ONNXFUSE_PROGRAM_SHAPES_H_

#include <string>
#include <vector>

#include "program/program.h"
#include "program/shape.h"

namespace onnxfuse {

// Sets `view` to the part of a dense tensor that slices leave, one after the other.  False if there is no such axis.
bool slice_view(const Shape& tensor, const std::vector<AxisSlice>& slices, View* view);

// Elements that a slice leaves of `size`, from element `first` on.
int64_t sliced_size(const AxisSlice& slice, int64_t size, int64_t* first);

// Sets `shapes` to the shape of every value, by id; an input along an axis has the shape in which it broadcasts, such
// as [3,1,1], and one that is sliced that of what is left.  False if the inputs' shapes do not fit; then `error` says
// why, naming the line of the Program.
bool resolve_shapes(const Program& program, const std::vector<Shape>& inputs, std::vector<Shape>* shapes,
                    std::string* error);

}  // namespace onnxfuse

#endif  // ONNXFUSE_PROGRAM_SHAPES_H_
