#include "nest/nest_space.h"

namespace onnxfuse {

bool is_same(const Shape& a, const Shape& b) { return without_leading_ones(a) == without_leading_ones(b); }

bool find_space(const NestShapes& shapes, const Phases& phases, Shape* space) {
  *space = Shape{};
  for (size_t id = 0; id < shapes.values.size(); ++id) {
    if (phases.is_needed[id] && !broadcast(*space, shapes.values[id], space)) return false;
  }
  return true;
}

std::vector<bool> values_before(const NestShapes& shapes, const Phases& phases) {
  const Program& program = shapes.program;
  std::vector<bool> before(program.values.size());
  Shape space;
  if (!find_space(shapes, phases, &space)) return before;
  for (size_t id = 0; id < before.size(); ++id) {
    if (!phases.is_needed[id] || program.values[id].kind != Value::Kind::Instruction || phases.earliest[id] != 0) continue;
    before[id] = !is_same(shapes.values[id], space);
  }
  return before;
}

}  // namespace onnxfuse
