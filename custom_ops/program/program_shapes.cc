#include "program/program_shapes.h"

#include <algorithm>

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
      if (value.swaps_halves && (inputs_[i].rank == 0 || inputs_[i].from_back(0) % 2 != 0)) {
        return fail(" of shape " + to_string(inputs_[i]) + " has no halves in its last dimension");
      }
      if (value.slices.empty()) continue;
      int64_t count = 0;
      View view;
      if (!element_count(inputs_[i], &count)) return fail(" has too many elements");
      if (!slice_view(inputs_[i], value.slices, &view)) {
        return fail(" of shape " + to_string(inputs_[i]) + " has not all the axes that are sliced");
      }
      inputs_[i] = view.shape;
    }
    return true;
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

  const Program& program_;
  std::vector<Shape> inputs_;  // as they are read
  Shape region_;
};

}  // namespace

int64_t sliced_size(const AxisSlice& slice, int64_t size, int64_t* first) {
  const auto place = [size](int64_t index) { return std::clamp<int64_t>(index < 0 ? index + size : index, 0, size); };
  *first = place(slice.start);
  const int64_t length = place(slice.end) - *first;
  return length <= 0 ? 0 : (length - 1) / slice.step + 1;
}

bool slice_view(const Shape& tensor, const std::vector<AxisSlice>& slices, View* view) {
  *view = whole_view(tensor);
  for (const AxisSlice& slice : slices) {
    const int axis = slice.axis < 0 ? slice.axis + tensor.rank : slice.axis;
    if (axis < 0 || axis >= tensor.rank) return false;
    int64_t& size = view->shape.dims[static_cast<size_t>(axis)];
    int64_t& stride = view->strides[static_cast<size_t>(axis)];
    int64_t first = 0;
    size = sliced_size(slice, size, &first);
    if (size > 0) view->offset += first * stride;
    if (size > 1) stride *= slice.step;  // a step that leaves two elements is within the tensor
  }
  return true;
}

bool resolve_shapes(const Program& program, const std::vector<Shape>& inputs, std::vector<Shape>* shapes,
                    std::string* error) {
  shapes->clear();
  return ShapeResolver(program, inputs).resolve(shapes, error);
}

}  // namespace onnxfuse
