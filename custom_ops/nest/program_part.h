// Parts of a Program that reduces: its phases, the space of what it reduces, and some of its instructions as a Program of their
// own, which reduces nothing.
#ifndef ONNXFUSE_PROGRAM_PART_H_
#define ONNXFUSE_PROGRAM_PART_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "program/program.h"
#include "program/shape.h"

namespace onnxfuse {

// When values are computed.  Phase 0 is before any reduction; each later one needs reductions of what the one before has.
struct Phases {
  std::vector<int> earliest;    // by value: the first in which it can be computed
  std::vector<int> phase;       // the one in which it is: the first that needs it; of a reduction, in which it is reduced
  std::vector<bool> is_needed;  // for an output
  int count = 0;
};

Phases find_phases(const Program& program);

// What is known of the shapes of a Program (resolve_shapes).
struct NestShapes {
  const Program& program;
  const std::vector<Shape>& inputs;
  const std::vector<Shape>& values;
};

// Whether two shapes are one, but for sizes of 1 before all others.
bool is_same(const Shape& a, const Shape& b);

// The shape to which all values that are needed are broadcast, and so are those that are reduced; false if there is none.
bool find_space(const NestShapes& shapes, const Phases& phases, Shape* space);

// Values that are computed before any block: those without reductions before them that are of another shape than the rows.
std::vector<bool> values_before(const NestShapes& shapes, const Phases& phases);

// A value that a part computes for others, in the type that it is computed in, or for an output.
struct PartResult {
  uint16_t value;
  int output;  // -1: for others
};

// Some instructions of a Program, and results of theirs or of what they read, as a Program.
struct ProgramPart {
  Program program;
  std::vector<Shape> shapes;      // of its values
  std::vector<Shape> tensors;     // of its inputs as they lie in memory
  std::vector<uint16_t> sources;  // its inputs, as values of the whole Program: inputs, or what other parts compute
  std::vector<PartResult> results;  // its outputs
};

// The values that `computes` names, which have these shapes; `tensors` are those of the Program's inputs.
ProgramPart take_part(const Program& whole, const std::vector<Shape>& shapes, const std::vector<Shape>& tensors,
                      const std::vector<bool>& computes, const std::vector<PartResult>& results);

}  // namespace onnxfuse

#endif  // ONNXFUSE_PROGRAM_PART_H_
