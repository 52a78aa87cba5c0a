#include "cuda/launch/cuda_access.h"

#include <algorithm>

#include "figures/programs.h"
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
  const bool one_run = std::all_of(operand->strides.begin(), operand->strides.begin() + static_cast<ptrdiff_t>(begin),
                                   [](int64_t stride) { return stride == 0; });
  const bool to_front = begin == 0;
  const bool to_back = end == dims.size();
  operand->access = !one_run              ? 'g'
                    : to_front && to_back ? 'l'
                    : to_back             ? 'i'
                    : to_front            ? 'o'
                                          : 'c';
}

// What a Program reads of its inputs' tensors, but for the order of halves, and its outputs as they are computed.
bool make_views(const Program& program, const std::vector<Shape>& inputs, const std::vector<Shape>& sources,
                std::vector<View>* views, std::string* error) {
  for (size_t s = 0; s < sources.size(); ++s) {
    views->push_back(whole_view(sources[s]));
    if (s >= program.input_count || !is_view(program.values[s])) continue;
    if (!input_view(program.values[s], inputs[s], &views->back(), error)) return false;
  }
  return true;
}

// A space, and what is read in it, without the dimensions of one element.
void drop_ones(Shape* space, std::vector<View>* views) {
  const Shape before = *space;
  const std::vector<View> read = *views;
  *space = Shape{};
  for (size_t v = 0; v < read.size(); ++v) {
    (*views)[v] = View{};
    (*views)[v].offset = read[v].offset;
  }
  for (int d = 0; d < before.rank; ++d) {
    const auto whole = static_cast<size_t>(d);
    if (before.dims[whole] == 1) continue;
    const auto at = static_cast<size_t>(space->rank++);
    space->dims[at] = before.dims[whole];
    for (size_t v = 0; v < read.size(); ++v) {
      const int own = d - (before.rank - read[v].shape.rank);
      View& view = (*views)[v];
      view.shape.rank = space->rank;
      view.shape.dims[at] = own < 0 ? 1 : read[v].shape.dims[static_cast<size_t>(own)];
      view.strides[at] = own < 0 ? 0 : read[v].strides[static_cast<size_t>(own)];
    }
  }
}

// Makes two dimensions of the last, of which the outer has two elements, and a step backwards where halves change places.
bool split_in_halves(const Program& program, Shape* space, std::vector<View>* views, std::string* error) {
  drop_ones(space, views);
  const auto last = static_cast<size_t>(space->rank - 1);
  const int64_t half = space->dims[last] / 2;
  if (half > 1 && space->rank == kMaxRank) {
    *error = "a space of halves has more than 16 dimensions";
    return false;
  }
  const auto split = [&](Shape* shape) {
    const bool repeats = shape->dims[last] == 1;
    shape->dims[last] = repeats ? 1 : 2;
    if (half > 1) shape->dims[static_cast<size_t>(shape->rank++)] = repeats ? 1 : half;
  };
  split(space);
  for (size_t v = 0; v < views->size(); ++v) {
    View& view = (*views)[v];
    const int64_t step = view.strides[last];
    const bool swaps = v < program.input_count && program.values[v].swaps_halves;
    view.strides[last] = swaps ? -step * half : step * half;
    if (half > 1) view.strides[last + 1] = step;
    if (swaps) view.offset += step * half;
    split(&view.shape);
  }
  return true;
}

}  // namespace

bool make_iteration_space(const Program& program, const std::vector<Shape>& inputs, IterationSpace* space,
                          std::string* error) {
  std::vector<Shape> shapes;
  if (!resolve_shapes(program, inputs, &shapes, error)) return false;
  *space = IterationSpace{};
  Shape whole;
  std::vector<Shape> sources(shapes.begin(), shapes.begin() + static_cast<ptrdiff_t>(program.input_count));
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
  }
  if (!resolve_outputs(program, shapes, &space->output_shapes, error)) return false;
  if (space->elements == 0) return true;  // and the product of the other dimensions may overflow
  std::vector<View> views;
  if (!make_views(program, inputs, sources, &views, error)) return false;
  const auto is_swapped = [](const Value& value) { return value.swaps_halves; };
  const auto end = program.values.begin() + static_cast<ptrdiff_t>(program.input_count);
  const bool swaps = std::any_of(program.values.begin(), end, is_swapped);
  if (swaps && !split_in_halves(program, &whole, &views, error)) return false;
  Collapsed collapsed = collapse(whole, views);
  space->dims = std::move(collapsed.dims);
  space->operands.resize(sources.size());
  for (size_t s = 0; s < sources.size(); ++s) {
    Operand& operand = space->operands[s];
    const bool is_input = s < program.input_count;
    operand.strides = std::move(collapsed.strides[s]);
    operand.offset = views[s].offset;
    operand.element_size = storage_size(program.values[is_input ? s : program.outputs[s - program.input_count]].type);
    classify_input(space->dims, &operand);
    if (!is_input) operand.access = operand.access == 'l' || space->elements == 1 ? 'l' : 'w';
  }
  return true;
}

bool place_output(const OutputPart& place, IterationSpace* space, std::string* error) {
  Operand& output = space->operands.back();
  if (output.access != 'l') {
    *error = "a part of an output is smaller than what it is computed from";
    return false;
  }
  output.offset = place.offset;
  if (place.run == space->elements) return true;
  output.access = 'p';
  output.inner = place.run;
  output.extent = place.step;
  return true;
}

bool has_groups(uint32_t vector, const Operand& operand, const IterationSpace& space, size_t along, bool* contiguous) {
  *contiguous = false;
  if (vector == 1) return true;
  if (space.dims.empty() || space.dims[along] % vector != 0) return false;
  if (operand.strides[along] == 0) return true;
  *contiguous = true;
  for (size_t d = 0; d < space.dims.size(); ++d) {
    if (d == along ? operand.strides[d] != 1 : operand.strides[d] % vector != 0) return false;
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
      return has_groups(vector, operand, space, space.dims.size() - 1, &indexing->contiguous);
    case 'w':
      return access == 'l' || access == 'w';
    case 'p':
      if (access != 'l' && access != 'p') return false;
      *indexing = {operand.inner, operand.extent - operand.inner, true};
      if (access == 'l') *indexing = {space.elements, 0, true};
      return indexing->inner % vector == 0 && indexing->extent % vector == 0;
    default:
      return false;
  }
}

}  // namespace onnxfuse::cuda
