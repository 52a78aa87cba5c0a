#include "program/program_shapes.h"

#include <algorithm>

#include "figures/programs.h"

namespace onnxfuse {
namespace {

class ShapeResolver {
 public:
  ShapeResolver(const Program& program, const std::vector<Shape>& inputs) : program_(program), inputs_(inputs) {}

  bool resolve(std::vector<Shape>* shapes, std::string* error) {
    if (!view_inputs(error)) return false;
    resolve_region();
    for (size_t id = 0; id < program_.values.size(); ++id) {
      const Value& value = program_.values[id];
      Shape shape;
      if (value.kind == Value::Kind::Input) {
        if (!resolve_input(id, &shape, error)) return false;
      } else if (value.kind == Value::Kind::Reduction || value.kind == Value::Kind::Index) {
        if (!resolve_axes(value, (*shapes)[value.operands[0]], &shape, error)) return false;
      } else if (value.kind == Value::Kind::Instruction) {
        const int arity = info(value.op).arity;
        shape = (*shapes)[value.operands[0]];
        for (int i = 1; i < arity; ++i) {
          const Shape& other = (*shapes)[value.operands[i]];
          Shape both;
          if (!broadcast(shape, other, &both)) {
            *error = line(value) + info(value.op).name + ": shapes " + to_string(shape) + " and " + to_string(other) +
                     " do not broadcast";
            return false;
          }
          shape = both;
        }
      }
      int64_t count = 0;
      if (!element_count(shape, &count)) {
        *error = line(value) + "shape " + to_string(shape) + " has too many elements";
        return false;
      }
      shapes->push_back(shape);
    }
    return true;
  }

 private:
  static std::string line(const Value& value) { return "line " + std::to_string(value.line) + ": "; }

  // Puts what is read of each input in its place.
  bool view_inputs(std::string* error) {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const Value& value = program_.values[i];
      const auto fail = [&](const std::string& problem) {
        *error = line(value) + "input " + std::to_string(i) + problem;
        return false;
      };
      if (inputs_[i].rank > kMaxRank) return fail(" has more than 16 dimensions");
      if (!is_view(value) && !is_named(value)) continue;
      int64_t count = 0;
      View view;
      if (!element_count(inputs_[i], &count)) return fail(" has too many elements");
      std::string problem;
      if (!input_view(value, inputs_[i], &view, &problem)) {
        return fail(" of shape " + to_string(inputs_[i]) + ": " + problem);
      }
      const int rank = view.shape.rank;
      if (value.swaps_halves && (rank == 0 || view.shape.from_back(0) % 2 != 0)) {
        return fail(" of shape " + to_string(view.shape) + " has no halves in its last dimension");
      }
      element_count(view.shape, &count);
      if (value.swaps_halves && count > 0 && view.strides[rank - 1] != 1) {
        return fail(" has halves that are not side by side");
      }
      inputs_[i] = view.shape;
      if (is_named(value) && !name_rows(value, &inputs_[i], &problem)) return fail(problem);
    }
    return true;
  }

  // Makes of the shape of one row that of all that are named.
  bool name_rows(const Value& value, Shape* row, std::string* problem) const {
    const Shape& numbers = inputs_[static_cast<size_t>(value.row)];
    const auto varies = [&](int axis) { return numbers.from_back(-1 - axis) != 1; };
    if (std::any_of(program_.axes.begin(), program_.axes.end(), varies)) {
      *problem = ": numbers of rows, of shape " + to_string(numbers) + ", that differ along the axes that are reduced";
      return false;
    }
    const Shape own = *row;
    if (broadcast(numbers, own, row)) return true;
    *problem = ": numbers of rows, of shape " + to_string(numbers) + ", and rows of shape " + to_string(own) +
               " do not broadcast";
    return false;
  }

  // The region's shape: its rank, and where the broadcast inputs agree on it, each dimension.
  void resolve_region() {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (!program_.values[i].along_axis) region_.rank = std::max(region_.rank, inputs_[i].rank);
    }
    for (int d = 0; d < region_.rank; ++d) {
      int64_t& size = region_.dims[region_.rank - 1 - d];
      size = 1;
      for (size_t i = 0; i < inputs_.size(); ++i) {
        const int64_t own = inputs_[i].from_back(d);
        if (!program_.values[i].along_axis && own != 1) size = size == 1 || size == own ? own : -1;
      }
    }
  }

  bool resolve_input(size_t id, Shape* shape, std::string* error) const {
    const Value& value = program_.values[id];
    const Shape& own = inputs_[id];
    if (!value.along_axis) {
      *shape = own;
      return true;
    }
    const int axis = value.axis < 0 ? value.axis + region_.rank : value.axis;
    // A dimension is -1 where branches have different sizes: then the instruction that reads the vector finds out.
    const bool fits = own.rank == 1 && axis >= 0 && axis < region_.rank &&
                      (own.dims[0] == 1 || own.dims[0] == region_.dims[axis] || region_.dims[axis] < 0);
    if (!fits) {
      *error = line(value) + "input " + std::to_string(id) + " of shape " + to_string(own) + " does not lie along axis " +
               std::to_string(value.axis) + " of shape " + to_string(region_);
      return false;
    }
    // Other values of the region may have more dimensions than those that the vector meets.
    shape->rank = value.axis < 0 ? -value.axis : region_.rank;
    std::fill_n(shape->dims.begin(), shape->rank, 1);
    shape->dims[value.axis < 0 ? 0 : axis] = own.dims[0];
    return true;
  }

  bool resolve_axes(const Value& value, const Shape& operand, Shape* shape, std::string* error) const {
    const int first = value.kind == Value::Kind::Index ? value.axis : program_.axes[0];
    if (operand.rank < -first) {
      *error = line(value) + "shape " + to_string(operand) + " has no axis " + std::to_string(first);
      return false;
    }
    *shape = operand;
    if (value.kind == Value::Kind::Index) return true;
    for (const int axis : program_.axes) shape->dims[static_cast<size_t>(operand.rank + axis)] = 1;
    return true;
  }

  const Program& program_;
  std::vector<Shape> inputs_;  // as they are read
  Shape region_;
};

// Lengthens a tensor along an axis by a part.  False if that does not fit it.
bool append(const Shape& part, int axis, Shape* tensor) {
  if (part.rank != tensor->rank || part.rank < -axis) return false;
  // What is nothing along the axis adds nothing, whatever its other sizes are, as in ONNX Runtime's Concat: an empty cache.
  if (part.from_back(-axis - 1) == 0) return true;
  Shape joined = *tensor;
  if (tensor->from_back(-axis - 1) == 0) {
    joined = part;
    joined.dims[static_cast<size_t>(part.rank + axis)] = 0;
  }
  for (int d = 0; d < part.rank; ++d) {
    const auto at = static_cast<size_t>(d);
    if (d != part.rank + axis && part.dims[at] != joined.dims[at]) return false;
  }
  int64_t& size = joined.dims[static_cast<size_t>(part.rank + axis)];
  int64_t count = 0;
  if (__builtin_add_overflow(size, part.dims[static_cast<size_t>(part.rank + axis)], &size)) return false;
  if (!element_count(joined, &count)) return false;
  *tensor = joined;
  return true;
}

// Of a program that appends: `own` are the shapes of its outputs.
std::vector<OutputPart> find_parts(const Program& program, const std::vector<Shape>& own,
                                   const std::vector<Shape>& tensors) {
  std::vector<OutputPart> parts;
  size_t tensor = 0;
  for (size_t o = 0; o < own.size(); ++o) {
    const bool begins = program.appends[o] == 0;
    if (begins && o > 0) ++tensor;
    // The first part lies along the axis of the next one, and is the whole tensor if there is none.
    const bool is_whole = begins && (o + 1 == own.size() || program.appends[o + 1] == 0);
    const int axis = is_whole ? -own[o].rank : begins ? program.appends[o + 1] : program.appends[o];
    OutputPart part;
    part.tensor = tensor;
    part.run = part.step = 1;
    int64_t count = 0;
    const bool has_elements = element_count(tensors[tensor], &count) && count != 0;  // else products need not fit 64 bits
    for (int d = 0; has_elements && d < -axis; ++d) {
      part.run *= own[o].from_back(-axis - 1) == 0 ? 0 : own[o].from_back(d);  // of nothing other sizes may be any
      part.step *= tensors[tensor].from_back(d);
    }
    if (!begins && has_elements) part.offset = parts.back().offset + parts.back().run;
    parts.push_back(part);
  }
  return parts;
}

// Without the first dimension, which the tensor has.
Shape row_of(const Shape& tensor) {
  Shape row;
  row.rank = tensor.rank - 1;
  std::copy_n(tensor.dims.begin() + 1, row.rank, row.dims.begin());
  return row;
}

}  // namespace

bool input_view(const Value& input, const Shape& tensor, View* view, std::string* error) {
  int64_t count = 0;
  if (is_named(input) && (tensor.rank == 0 || !element_count(row_of(tensor), &count))) {
    *error = tensor.rank == 0 ? "it has no rows" : "its rows have too many elements";  // though there may be none
    return false;
  }
  *view = whole_view(is_named(input) ? row_of(tensor) : tensor);
  for (const AxisSlice& slice : input.slices) {
    const int axis = slice.axis < 0 ? slice.axis : slice.axis - tensor.rank;
    if (axis < -tensor.rank || axis >= 0) {
      *error = "it has not all the axes that are sliced";
      return false;
    }
    const ViewStep step{ViewStep::Kind::Slice, static_cast<int8_t>(axis), 0, {}, {slice.start, slice.end, slice.step}};
    if (!apply_view_steps({step}, view, error)) return false;
  }
  return apply_view_steps(input.view, view, error);
}

bool resolve_shapes(const Program& program, const std::vector<Shape>& inputs, std::vector<Shape>* shapes,
                    std::string* error) {
  shapes->clear();
  return ShapeResolver(program, inputs).resolve(shapes, error);
}

bool resolve_outputs(const Program& program, const std::vector<Shape>& shapes, std::vector<Shape>* tensors,
                     std::string* error, std::vector<OutputPart>* parts) {
  tensors->clear();
  std::vector<Shape> own;
  const auto fail = [&](size_t o, const std::string& problem) {
    *error = "output " + std::to_string(o) + ": " + problem;
    return false;
  };
  for (size_t o = 0; o < program.outputs.size(); ++o) {
    View view = whole_view(shapes[program.outputs[o]]);
    std::string problem;
    if (!program.output_views.empty() && !apply_view_steps(program.output_views[o], &view, &problem)) {
      return fail(o, problem);
    }
    own.push_back(view.shape);
    const int axis = program.appends.empty() ? 0 : program.appends[o];
    if (axis == 0) {
      tensors->push_back(view.shape);
    } else if (!append(view.shape, axis, &tensors->back())) {
      return fail(o, "shape " + to_string(view.shape) + " does not lie along axis " + std::to_string(axis) +
                         " behind shape " + to_string(tensors->back()));
    }
  }
  if (parts != nullptr && !program.appends.empty()) *parts = find_parts(program, own, *tensors);
  return true;
}

}  // namespace onnxfuse
