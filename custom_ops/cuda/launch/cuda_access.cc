#include "cuda/launch/cuda_access.h"

#include <algorithm>

#include "program/program_shapes.h"

namespace onnxfuse::cuda {
namespace {

// The tightest letter of an input: its strides are dense over a run of dimensions and 0 before and behind it.
void classify_input(const std::vector<int64_t>& dims, Operand* operand) {
  size_t end = dims.size();
  while (end > 0 && operand->strides[end - 1] == 0) --end;
  for (size_t d = end; d < dims.size(); ++d) operand->inner *= dims[d];
  if (end == 0) {
    operand->access = 's';
    return;
  }
  size_t begin = end;
  while (begin > 0 && operand->strides[begin - 1] == operand->extent) operand->extent *= dims[--begin];
  const bool one_run = std::all_of(operand->strides.begin(), operand->strides.begin() + static_cast<long>(begin),
                                   [](int64_t stride) { return stride == 0; });
  const bool to_front = begin == 0;
  const bool to_back = end == dims.size();
  operand->access = !one_run              ? 'g'
                    : to_front && to_back ? 'l'
                    : to_back             ? 'i'
                    : to_front            ? 'o'
                                          : 'c';
}

}  // namespace

bool make_iteration_space(const Program& program, const std::vector<Shape>& inputs, IterationSpace* space,
                          std::string* error) {
  std::vector<Shape> shapes;
  if (!resolve_shapes(program, inputs, &shapes, error)) return false;
  *space = IterationSpace{};
  Shape whole;
  std::vector<Shape> sources(shapes.begin(), shapes.begin() + static_cast<long>(program.input_count));
  for (size_t i = 0; i < sources.size(); ++i) {
    const Shape before = whole;
    if (broadcast(before, sources[i], &whole)) continue;
    *error = "input " + std::to_string(i) + " of shape " + to_string(inputs[i]) +
             " does not broadcast with the inputs before it, of shape " + to_string(before);
    return false;
  }
  if (!element_count(whole, &space->elements)) {
    *error = "shape " + to_string(whole) + " has too many elements";
    return false;
  }
  for (size_t o = 0; o < program.outputs.size(); ++o) {
    const Shape& shape = shapes[program.outputs[o]];
    Shape both;
    if (!broadcast(shape, whole, &both) || both != whole) {
      *error = "output " + std::to_string(o) + " of shape " + to_string(shape) + " does not broadcast to shape " +
               to_string(whole) + " of the inputs";
      return false;
    }
    sources.push_back(shape);
    space->output_shapes.push_back(shape);
  }
  if (space->elements == 0) return true;  // and the product of the other dimensions may overflow
  std::vector<View> views;
  for (const Shape& source : sources) views.push_back(whole_view(source));
  Collapsed collapsed = collapse(whole, views);
  space->dims = std::move(collapsed.dims);
  space->operands.resize(sources.size());
  for (size_t s = 0; s < sources.size(); ++s) {
    Operand& operand = space->operands[s];
    const bool is_input = s < program.input_count;
    operand.strides = std::move(collapsed.strides[s]);
    operand.element_size = storage_size(program.values[is_input ? s : program.outputs[s - program.input_count]].type);
    classify_input(space->dims, &operand);
    if (!is_input) operand.access = operand.access == 'l' || space->elements == 1 ? 'l' : 'w';
  }
  return true;
}

bool accepts(char letter, uint32_t vector, const Operand& operand, const IterationSpace& space, Indexing* indexing) {
  const char access = operand.access;
  *indexing = {operand.inner, operand.extent, letter == 'l' || letter == 'i'};
  switch (letter) {
    case 's':
      return access == 's';
    case 'l':
      return access == 'l';
    case 'i':
      return (access == 'i' || access == 's' || access == 'l') && operand.extent % vector == 0;
    case 'o':
      return (access == 'o' || access == 's' || access == 'l') && operand.inner % vector == 0;
    case 'c':
      return access != 'g' && operand.inner % vector == 0;
    case 'g':
      // Tensors are dense, so along the innermost dimension an operand steps by one element or not at all.
      if (vector == 1) return true;
      if (space.dims.empty() || space.dims.back() % vector != 0) return false;
      indexing->contiguous = operand.strides.back() != 0;
      return true;
    case 'w':
      return access == 'l' || access == 'w';
    default:
      return false;
  }
}

}  // namespace onnxfuse::cuda
