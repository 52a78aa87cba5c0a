// The shapes of a Program's values, once those of its inputs are known.
#ifndef ONNXFUSE_PROGRAM_SHAPES_H_
#define ONNXFUSE_PROGRAM_SHAPES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "program/program.h"
#include "program/shape.h"

namespace onnxfuse {

// Sets `view` to what an input reads of a dense tensor, but for the order of halves, or of the first row of one whose rows
// are named.  False if the tensor is not such as
// it reads; then `error` says why.
bool input_view(const Value& input, const Shape& tensor, View* view, std::string* error);

// Sets `shapes` to the shape of every value, by id; an input along an axis has the shape in which it broadcasts, such
// as [3,1,1], and a view that of what is read.  False if the inputs' shapes do not fit; then `error` says why, naming the
// line of the Program.
bool resolve_shapes(const Program& program, const std::vector<Shape>& inputs, std::vector<Shape>* shapes,
                    std::string* error);

// Where the elements of an output, in their order, lie in its tensor: `run` of them side by side, the first of each run
// `step` elements behind that of the one before, and the first of all at element `offset`.
struct OutputPart {
  size_t tensor = 0;
  int64_t offset = 0;
  int64_t run = 0;
  int64_t step = 0;
};

// Sets `tensors` to the shapes of the outputs' tensors, and `parts`, where tensors are written in parts and it is not null,
// to the place of each output.  False if a value has another shape than such as its output's steps are for, or the parts of
// a tensor do not fit; then `error` says why.
bool resolve_outputs(const Program& program, const std::vector<Shape>& shapes, std::vector<Shape>* tensors,
                     std::string* error, std::vector<OutputPart>* parts = nullptr);

}  // namespace onnxfuse

#endif  // ONNXFUSE_PROGRAM_SHAPES_H_
