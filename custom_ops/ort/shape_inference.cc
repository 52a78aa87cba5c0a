#include "ort/shape_inference.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "ort/symbolic_shape.h"
#include "platform/error.h"
#include "program/program.h"
#include "program/program_shapes.h"

namespace onnxfuse {
namespace {

Dim broadcast_dim(const Dim& a, const Dim& b) {
  if (a.size == 1) return b;
  if (b.size == 1) return a;
  if (a.size >= 0) return a;  // the other is this size too, or 1
  if (b.size >= 0) return b;
  return a.name == b.name ? a : Dim{};
}

SymbolicShape broadcast_shapes(const SymbolicShape& a, const SymbolicShape& b) {
  if (!a.known || !b.known) return {};
  const SymbolicShape& longer = a.dims.size() >= b.dims.size() ? a : b;
  const SymbolicShape& shorter = a.dims.size() >= b.dims.size() ? b : a;
  SymbolicShape result = longer;
  const size_t skip = longer.dims.size() - shorter.dims.size();
  for (size_t i = 0; i < shorter.dims.size(); ++i) {
    result.dims[skip + i] = broadcast_dim(longer.dims[skip + i], shorter.dims[i]);
  }
  return result;
}

void slice_dim(const AxisSlice& slice, Dim* dim) {
  int64_t first = 0;
  if (dim->size >= 0) {
    dim->size = sliced_size(slice, dim->size, &first);
  } else if (slice.start != 0 || slice.end != INT64_MAX || slice.step != 1) {
    *dim = Dim{};
  }
}

// What is left where the size is not known: the axis itself beside one of one element.
Dim part_of(const Dim& dim, int64_t part, int64_t other) {
  if (part > 0) return {part, ""};
  return other == 1 ? dim : Dim{};
}

Dim merged(const Dim& outer, const Dim& inner) {
  if (outer.size == 1) return inner;
  if (inner.size == 1) return outer;
  Dim result;
  const bool known = outer.size >= 0 && inner.size >= 0;
  if (!known || __builtin_mul_overflow(outer.size, inner.size, &result.size)) return {};
  return result;
}

// Unknown if the step does not fit.
SymbolicShape step_shape(SymbolicShape shape, const ViewStep& step) {
  const auto rank = static_cast<int>(shape.dims.size());
  if (!shape.known) return {};
  if (step.kind == ViewStep::Kind::Permute) {
    if (step.rank != rank) return {};
    const std::vector<Dim> from = shape.dims;
    for (size_t d = 0; d < from.size(); ++d) shape.dims[d] = from[static_cast<size_t>(step.order[d])];
    return shape;
  }
  const bool adds = step.kind == ViewStep::Kind::Unsqueeze;
  const int at = step.axis + rank + (adds ? 1 : 0);
  if (at < 0) return {};
  const auto place = shape.dims.begin() + at;
  switch (step.kind) {
    case ViewStep::Kind::Slice:
      slice_dim(step.slice(), &*place);
      return shape;
    case ViewStep::Kind::Split: {
      const Dim dim = *place;
      Dim outer{0, ""};
      Dim inner{0, ""};
      if (dim.size < 0) {
        outer = part_of(dim, step.numbers[0], step.numbers[1]);
        inner = part_of(dim, step.numbers[1], step.numbers[0]);
      } else if (!split_size(step, dim.size, &outer.size, &inner.size)) {
        return {};
      }
      *place = inner;
      shape.dims.insert(shape.dims.begin() + at, outer);
      return shape;
    }
    case ViewStep::Kind::Merge:
      *place = merged(*place, *(place + 1));
      shape.dims.erase(place + 1);
      return shape;
    case ViewStep::Kind::Squeeze:
      shape.dims.erase(place);
      return shape;
    case ViewStep::Kind::Nibbles: {
      const bool known = place->size >= 0 && !__builtin_mul_overflow(place->size, 2, &place->size);
      if (!known) *place = Dim{-1, ""};
      return shape;
    }
    default:
      shape.dims.insert(place, Dim{1, ""});
      return shape;
  }
}

SymbolicShape view_shape(SymbolicShape shape, const std::vector<ViewStep>& steps) {
  for (const ViewStep& step : steps) shape = step_shape(std::move(shape), step);
  return shape;
}

SymbolicShape read_shape(const Value& input, SymbolicShape shape) {
  for (const AxisSlice& slice : input.slices) {
    const auto rank = static_cast<int>(shape.dims.size());
    const int axis = slice.axis < 0 ? slice.axis + rank : slice.axis;
    if (!shape.known || axis < 0 || axis >= rank) return {};
    slice_dim(slice, &shape.dims[static_cast<size_t>(axis)]);
  }
  if (is_named(input)) {
    if (!shape.known || shape.dims.empty()) return {};
    shape.dims.erase(shape.dims.begin());
  }
  return view_shape(std::move(shape), input.view);
}

// That of a value of which some axes are reduced.
SymbolicShape reduced_shape(SymbolicShape shape, const std::vector<int>& axes) {
  const auto rank = static_cast<int>(shape.dims.size());
  if (!shape.known || rank < -axes[0]) return {};
  for (const int axis : axes) shape.dims[static_cast<size_t>(rank + axis)] = Dim{1, ""};
  return shape;
}

// That of a tensor, lengthened along an axis by a part.
SymbolicShape joined_shape(SymbolicShape tensor, const SymbolicShape& part, int axis) {
  const auto rank = static_cast<int>(tensor.dims.size());
  if (!tensor.known || !part.known || tensor.dims.size() != part.dims.size() || rank < -axis) return {};
  for (size_t d = 0; d < part.dims.size(); ++d) {
    Dim& dim = tensor.dims[d];
    if (static_cast<int>(d) == rank + axis) {
      const bool known = dim.size >= 0 && part.dims[d].size >= 0;
      if (!known || __builtin_add_overflow(dim.size, part.dims[d].size, &dim.size)) dim = Dim{};
    } else if (dim.size < 0 && part.dims[d].size >= 0) {
      dim = part.dims[d];
    }
  }
  return tensor;
}

std::vector<SymbolicShape> tensor_shapes(const Program& program, const std::vector<SymbolicShape>& values) {
  std::vector<SymbolicShape> tensors;
  for (size_t o = 0; o < program.outputs.size(); ++o) {
    SymbolicShape own = values[program.outputs[o]];
    if (!program.output_views.empty()) own = view_shape(std::move(own), program.output_views[o]);
    const int axis = program.appends.empty() ? 0 : program.appends[o];
    if (axis == 0) {
      tensors.push_back(std::move(own));
    } else {
      tensors.back() = joined_shape(std::move(tensors.back()), own, axis);
    }
  }
  return tensors;
}

}  // namespace

std::vector<SymbolicShape> infer_values(const Program& program, const std::vector<SymbolicShape>& inputs) {
  bool region_known = true;
  size_t region_rank = 0;
  std::vector<SymbolicShape> read;
  for (size_t i = 0; i < inputs.size(); ++i) {
    read.push_back(read_shape(program.values[i], inputs[i]));
    if (is_named(program.values[i])) {
      read[i] = broadcast_shapes(read[static_cast<size_t>(program.values[i].row)], read[i]);
    }
    if (program.values[i].along_axis) continue;
    region_known = region_known && read[i].known;
    region_rank = std::max(region_rank, read[i].dims.size());
  }
  std::vector<SymbolicShape> shapes;
  for (size_t id = 0; id < program.values.size(); ++id) {
    const Value& value = program.values[id];
    SymbolicShape shape;
    if (value.kind == Value::Kind::Const) {
      shape.known = true;
    } else if (value.kind == Value::Kind::Instruction) {
      shape = shapes[value.operands[0]];
      for (int i = 1; i < info(value.op).arity; ++i) shape = broadcast_shapes(shape, shapes[value.operands[i]]);
    } else if (value.kind == Value::Kind::Reduction) {
      shape = reduced_shape(shapes[value.operands[0]], program.axes);
    } else if (value.kind == Value::Kind::Index) {
      shape = shapes[value.operands[0]];
    } else if (!value.along_axis) {
      shape = read[id];
    } else {
      const bool from_back = value.axis < 0;
      const auto rank = from_back ? static_cast<size_t>(-value.axis) : region_rank;
      const auto axis = from_back ? size_t{0} : static_cast<size_t>(value.axis);
      if (region_known && inputs[id].dims.size() == 1 && rank <= region_rank && axis < rank) {
        shape.known = true;
        shape.dims.assign(rank, Dim{1, ""});
        shape.dims[axis] = inputs[id].dims[0];
      }
    }
    shapes.push_back(std::move(shape));
  }
  return shapes;
}

void infer_output_shapes(const OrtApi& api, OrtShapeInferContext* context, Reads reads) {
  const InferenceNode node(api, context);
  std::string text;
  std::string error;
  Program program;
  if (!node.attributes().text("program", &text)) throw Error("it has no attribute program");
  if (!parse_program(text, &program, &error, reads)) throw Error("the program attribute is not valid: " + error);
  const size_t count = node.input_count();
  if (count != program.input_count) {
    throw Error("the node has " + std::to_string(count) + " inputs, but its program has " +
                std::to_string(program.input_count));
  }
  std::vector<SymbolicShape> inputs(count);
  bool widened = false;
  for (size_t i = 0; i < count; ++i) {
    const int type = node.input(i, &inputs[i]);
    widened = widened || (program.values[i].type == DType::f16 && type == info(DType::f32).onnx);
  }
  if (widened) program = widen_half(program);
  const std::vector<SymbolicShape> shapes = infer_values(program, inputs);
  const std::vector<SymbolicShape> tensors = tensor_shapes(program, shapes);
  for (size_t t = 0; t < tensors.size(); ++t) {
    node.set_output(t, output_type(program, first_output(program, t)), tensors[t]);
  }
}

SymbolicShape infer_conv(const ConvAttributes& attributes, const SymbolicShape& input) {
  SymbolicShape result;
  if (attributes.channels_last) {
    result = input;
    result.known = input.known && !input.dims.empty();
    if (result.known) result.dims.back() = Dim{attributes.out_channels, ""};
    return result;
  }
  result.known = true;
  result.dims.resize(attributes.spatial_rank() + 2);
  result.dims[1].size = attributes.out_channels;
  if (!input.known || input.dims.size() != result.dims.size()) return result;
  result.dims[0] = input.dims[0];
  for (size_t d = 0; d < attributes.spatial_rank(); ++d) {
    const Dim& from = input.dims[d + 2];
    Dim& to = result.dims[d + 2];
    int64_t pad_begin = 0;
    if (conv_keeps_size(attributes, d)) {
      to = from;
    } else if (from.size >= 0 && !conv_output_size(attributes, d, from.size, &to.size, &pad_begin)) {
      to = Dim{};
    }
  }
  return result;
}

}  // namespace onnxfuse
