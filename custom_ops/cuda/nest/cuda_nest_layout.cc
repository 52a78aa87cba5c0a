#include "cuda/nest/cuda_nest_layout.h"

#include <algorithm>

#include "figures/cuda.h"
#include "program/program_shapes.h"

namespace onnxfuse::cuda {
namespace {


// The coordinates along its axis of a value of this shape, as a tensor.
View coordinates(const Value& index, const Shape& shape) {
  View view;
  view.shape = shape;
  view.strides[shape.rank + index.axis] = 1;
  return view;
}

// Whether what reductions read has all elements of the space along the axes, which is one pass over rows for all.
bool reduces_rows(const Program& program, const std::vector<Shape>& shapes, const Shape& space, std::string* error) {
  for (const Value& value : program.values) {
    if (value.kind != Value::Kind::Reduction) continue;
    const Shape& own = shapes[value.operands[0]];
    for (const int axis : program.axes) {
      if (own.from_back(-1 - axis) == space.from_back(-1 - axis)) continue;
      *error = "line " + std::to_string(value.line) + ": shape " + to_string(own) + " has not all elements of " +
               to_string(space) + " along the axes that are reduced";
      return false;
    }
  }
  return true;
}

// The dimensions of a space that are reduced, or those that are not, with the steps of all operands along them.
Collapsed part_of(const Shape& space, const std::vector<View>& views, const std::vector<bool>& is_reduced, bool reduced) {
  Shape shape;
  std::vector<View> parts(views.size());
  for (int d = 0; d < space.rank; ++d) {
    if (is_reduced[d] != reduced) continue;
    shape.dims[shape.rank] = space.dims[d];
    for (size_t v = 0; v < views.size(); ++v) {
      const int own = d - (space.rank - views[v].shape.rank);
      parts[v].shape.rank = shape.rank + 1;
      parts[v].shape.dims[shape.rank] = own < 0 ? 1 : views[v].shape.dims[own];
      parts[v].strides[shape.rank] = own < 0 ? 0 : views[v].strides[own];
    }
    ++shape.rank;
  }
  return collapse(shape, parts);
}

// The step from one element of a row to the next; false if it is not the same for all.
bool step_of(const NestOperand& operand, const NestLayout& layout, int64_t* step) {
  *step = layout.row_rank == 0 ? 0 : operand.steps[0];
  int64_t size = 1;
  for (size_t d = 0; d < layout.row_rank; ++d) {
    if (operand.steps[d] != *step * size) return false;
    size *= layout.dims[d];
  }
  return true;
}

bool fits_32_bits(const NestLayout& layout) {
  int64_t elements = 0;
  if (__builtin_mul_overflow(layout.rows, std::max<int64_t>(layout.length, 1), &elements)) return false;
  if (elements > kMaxCount32) return false;
  for (const NestOperand& operand : layout.operands) {
    int64_t reach = operand.offset;
    for (size_t d = 0; d < layout.dims.size(); ++d) {
      int64_t own = 0;
      if (__builtin_mul_overflow(layout.dims[d] - 1, operand.steps[d], &own)) return false;
      if (__builtin_add_overflow(reach, own, &reach)) return false;
    }
    int64_t last = 0;
    if (__builtin_mul_overflow(std::max<int64_t>(operand.table - 1, 0), operand.table_step, &last)) return false;
    if (__builtin_add_overflow(reach, last, &reach)) return false;
    if (reach >= kLimit32 || operand.table >= kLimit32) return false;
  }
  return true;
}

// Whether the groups of a kernel are of one row each, or one element of rows that lie side by side, and such neighbours are
// neighbours in the operand too, or one element of it.
bool takes_vectors(const NestKernel& kernel, char letter, const NestOperand& operand, const NestLayout& layout,
                   uintptr_t* misaligned) {
  const int64_t vector = kernel.vector;
  const size_t first = kernel.by_columns ? layout.row_rank : 0;
  const size_t end = kernel.by_columns ? layout.dims.size() : layout.row_rank;
  if (first == end || layout.dims[first] % vector != 0) return false;
  if (!kernel.by_columns && letter == 's') return true;
  if (operand.element_bits == 0) return true;
  if (operand.steps[first] == 0) return !operand.is_output;  // one thread's neighbours would all write it
  if (operand.steps[first] != 1) return false;
  for (size_t d = 0; d < layout.dims.size(); ++d) {
    if (d != first && operand.steps[d] % vector != 0) return false;
  }
  if (operand.table_step % vector != 0) return false;
  const auto alignment = static_cast<int64_t>(std::min(static_cast<size_t>(vector) * operand.element_bits / 8, kWidestAccess));
  *misaligned = static_cast<uintptr_t>(alignment - 1);
  return operand.offset * static_cast<int64_t>(operand.element_bits) % (8 * alignment) == 0;
}

}  // namespace

NestOperands nest_operands(const Program& program) {
  const auto is_index = [](const Value& value) { return value.kind == Value::Kind::Index; };
  const auto indices = std::count_if(program.values.begin(), program.values.end(), is_index);
  const auto tables = std::count_if(program.values.begin(), program.values.end(), is_named);
  return {program.input_count, static_cast<size_t>(indices), program.outputs.size(), static_cast<size_t>(tables)};
}

bool make_nest_layout(const Program& program, const std::vector<Shape>& inputs, NestLayout* layout, std::string* error) {
  *layout = NestLayout{};
  std::vector<Shape> shapes;
  if (!resolve_shapes(program, inputs, &shapes, error)) return false;
  if (!resolve_outputs(program, shapes, &layout->output_shapes, error)) return false;
  Shape space;
  for (const Shape& shape : shapes) {
    const Shape before = space;
    if (broadcast(before, shape, &space)) continue;
    *error = "a value of shape " + to_string(shape) + " does not broadcast with those before it, of shape " +
             to_string(before);
    return false;
  }
  int64_t elements = 0;
  if (!element_count(space, &elements)) {
    *error = "shape " + to_string(space) + " has too many elements";
    return false;
  }
  if (!reduces_rows(program, shapes, space, error)) return false;
  std::vector<View> views;
  for (size_t i = 0; i < program.values.size(); ++i) {
    const Value& value = program.values[i];
    if (value.kind == Value::Kind::Input) {
      View view = whole_view(shapes[i]);  // of a vector along an axis
      if (!value.along_axis && !input_view(value, inputs[i], &view, error)) return false;
      views.push_back(view);
    } else if (value.kind == Value::Kind::Index) {
      views.push_back(coordinates(value, shapes[i]));
    }
  }
  for (const uint16_t output : program.outputs) views.push_back(whole_view(shapes[output]));
  std::vector<bool> is_reduced(space.rank, false);
  for (const int axis : program.axes) is_reduced[space.rank + axis] = true;
  for (int d = 0; d < space.rank; ++d) {
    int64_t* const count = is_reduced[d] ? &layout->length : &layout->rows;
    if (!__builtin_mul_overflow(*count, space.dims[d], count)) continue;  // of a space without elements it may
    *error = "shape " + to_string(space) + " has too many rows, or too long ones";
    return false;
  }

  layout->operands.resize(views.size());
  for (const bool reduced : {true, false}) {
    if ((reduced ? layout->length : layout->rows) != 0) {
      const Collapsed part = part_of(space, views, is_reduced, reduced);
      layout->dims.insert(layout->dims.end(), part.dims.rbegin(), part.dims.rend());
      for (size_t k = 0; k < views.size(); ++k) {
        std::vector<int64_t>& steps = layout->operands[k].steps;
        steps.insert(steps.end(), part.strides[k].rbegin(), part.strides[k].rend());
      }
    }
    if (reduced) layout->row_rank = layout->dims.size();
  }
  const NestOperands counts = nest_operands(program);
  for (size_t k = 0; k < views.size(); ++k) {
    NestOperand& operand = layout->operands[k];
    operand.offset = views[k].offset;
    if (k >= counts.inputs && k < counts.inputs + counts.indices) continue;
    operand.is_output = k >= counts.inputs;
    const size_t o = k - counts.inputs - counts.indices;
    int64_t count = 0;
    element_count(operand.is_output ? layout->output_shapes[o] : inputs[k], &count);
    const Value& value = program.values[operand.is_output ? program.outputs[o] : k];
    operand.element_bits = !operand.is_output && has_nibbles(value.view) ? 4 : 8 * storage_size(value.type);
    operand.bytes = static_cast<size_t>(count) * storage_size(value.type);
    if (operand.is_output || !is_named(value)) continue;
    operand.table = inputs[k].dims[0];
    operand.table_step = operand.table == 0 ? 0 : count / operand.table;
  }
  return true;
}

bool accepts(const NestKernel& kernel, const NestLayout& layout, std::vector<uintptr_t>* misaligned) {
  if (kernel.index == 32 && !fits_32_bits(layout)) return false;
  if (kernel.items != 0 && layout.length > kernel.capacity()) return false;
  if (kernel.tile > 1 && (layout.dims.size() == layout.row_rank || layout.dims.back() != kernel.tile)) return false;
  misaligned->clear();
  for (size_t k = 0; k < layout.operands.size(); ++k) {
    const NestOperand& operand = layout.operands[k];
    const bool shared = kernel.access[k] < 'a';
    const char letter = shared ? static_cast<char>(kernel.access[k] - 'A' + 'a') : kernel.access[k];
    if (shared && operand.steps.back() != 0) return false;
    int64_t step = 0;
    const bool even = step_of(operand, layout, &step);
    if (letter != 'g' && letter != 'b' && !even) return false;
    if (letter == 'b' && layout.row_rank > 0 && operand.steps[0] != 0) return false;
    if (letter == 's' && step != 0) return false;
    if (letter == 'l' && !kernel.by_columns && step != 1 && layout.length > 1) return false;
    uintptr_t bits = 0;
    if (kernel.vector > 1 && !takes_vectors(kernel, letter, operand, layout, &bits)) return false;
    if (operand.element_bits != 0) misaligned->push_back(bits);
  }
  return true;
}

}  // namespace onnxfuse::cuda
