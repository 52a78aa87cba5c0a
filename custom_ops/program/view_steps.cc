#include "program/view_steps.h"

#include <algorithm>

#include "figures/programs.h"
#include "program/words.h"

namespace onnxfuse {
namespace {

struct StepName {
  const char* name;
  ViewStep::Kind kind;
  int numbers;  // behind the axis
};

constexpr StepName kNames[] = {{"slice", ViewStep::Kind::Slice, 3},     {"split", ViewStep::Kind::Split, 2},
                               {"merge", ViewStep::Kind::Merge, 0},     {"squeeze", ViewStep::Kind::Squeeze, 0},
                               {"unsqueeze", ViewStep::Kind::Unsqueeze, 0}, {"permute", ViewStep::Kind::Permute, 0},
                               {"nibbles", ViewStep::Kind::Nibbles, 0}};

bool parse_order(std::string_view text, ViewStep* step) {
  bool seen[kMaxRank] = {};
  while (true) {
    int axis = 0;
    if (step->rank == kMaxRank || !take_integer(&text, 0, &axis) || axis < 0 || axis >= kMaxRank || seen[axis]) return false;
    seen[axis] = true;
    step->order[static_cast<size_t>(step->rank++)] = static_cast<int8_t>(axis);
    if (text.empty()) break;
    if (text[0] != '.') return false;
    text.remove_prefix(1);
  }
  return step->rank > 1 && std::all_of(seen, seen + step->rank, [](bool is) { return is; });
}

bool parse_step(std::string_view text, ViewStep* step) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) return false;
  const StepName* const named = std::find_if(std::begin(kNames), std::end(kNames),
                                             [&](const StepName& n) { return text.substr(0, colon) == n.name; });
  if (named == std::end(kNames)) return false;
  step->kind = named->kind;
  text.remove_prefix(colon + 1);
  if (step->kind == ViewStep::Kind::Permute) return parse_order(text, step);
  int axis = 0;
  if (!take_integer(&text, named->numbers > 0 ? ':' : '\0', &axis)) return false;
  if (axis < -kMaxRank || axis >= (step->kind == ViewStep::Kind::Merge ? -1 : 0)) return false;
  if (step->kind == ViewStep::Kind::Nibbles && axis != -1) return false;
  step->axis = static_cast<int8_t>(axis);
  for (int i = 0; i < named->numbers; ++i) {
    if (!take_integer(&text, i + 1 < named->numbers ? ':' : '\0', &step->numbers[i])) return false;
  }
  if (!text.empty()) return false;
  if (step->kind == ViewStep::Kind::Slice) return step->numbers[2] >= 1;
  if (step->kind != ViewStep::Kind::Split) return true;
  const auto [least, most] = std::minmax(step->numbers[0], step->numbers[1]);
  return least > 0 || (least == -1 && most > 0);
}

void insert_axis(View* view, int at, int64_t size, int64_t stride) {
  for (int d = view->shape.rank++; d > at; --d) {
    view->shape.dims[static_cast<size_t>(d)] = view->shape.dims[static_cast<size_t>(d - 1)];
    view->strides[static_cast<size_t>(d)] = view->strides[static_cast<size_t>(d - 1)];
  }
  view->shape.dims[static_cast<size_t>(at)] = size;
  view->strides[static_cast<size_t>(at)] = stride;
}

void remove_axis(View* view, int at) {
  --view->shape.rank;
  for (int d = at; d < view->shape.rank; ++d) {
    view->shape.dims[static_cast<size_t>(d)] = view->shape.dims[static_cast<size_t>(d + 1)];
    view->strides[static_cast<size_t>(d)] = view->strides[static_cast<size_t>(d + 1)];
  }
  view->shape.dims[static_cast<size_t>(view->shape.rank)] = 0;
  view->strides[static_cast<size_t>(view->shape.rank)] = 0;
}

// Null, or why the step does not fit.
const char* apply(const ViewStep& step, View* view) {
  const int rank = view->shape.rank;
  if (step.kind == ViewStep::Kind::Permute) {
    if (step.rank != rank) return "is for another number of dimensions";
    const View from = *view;
    for (size_t d = 0; d < static_cast<size_t>(rank); ++d) {
      view->shape.dims[d] = from.shape.dims[static_cast<size_t>(step.order[d])];
      view->strides[d] = from.strides[static_cast<size_t>(step.order[d])];
    }
    return nullptr;
  }
  const bool adds = step.kind == ViewStep::Kind::Unsqueeze;
  const int at = step.axis + rank + (adds ? 1 : 0);
  if (at < 0) return "is for an axis that there is not";
  if ((adds || step.kind == ViewStep::Kind::Split) && rank == kMaxRank) return "makes more than 16 dimensions";
  if (adds) {
    insert_axis(view, at, 1, 0);
    return nullptr;
  }
  int64_t& size = view->shape.dims[static_cast<size_t>(at)];
  int64_t& stride = view->strides[static_cast<size_t>(at)];
  switch (step.kind) {
    case ViewStep::Kind::Slice: {
      int64_t first = 0;
      size = sliced_size(step.slice(), size, &first);
      if (size > 0) view->offset += first * stride;
      if (size > 1) stride *= step.numbers[2];  // a step that leaves two elements is within the tensor
      return nullptr;
    }
    case ViewStep::Kind::Split: {
      int64_t outer = 0;
      int64_t inner = 0;
      if (!split_size(step, size, &outer, &inner)) return "does not divide the axis";
      size = inner;
      insert_axis(view, at, outer, outer <= 1 || inner == 0 ? 0 : stride * inner);
      return nullptr;
    }
    case ViewStep::Kind::Merge: {
      const int64_t inner = view->shape.dims[static_cast<size_t>(at + 1)];
      const int64_t step_inner = view->strides[static_cast<size_t>(at + 1)];
      int64_t merged = 0;
      if (__builtin_mul_overflow(size, inner, &merged)) return "makes an axis of too many elements";
      const bool apart = size > 1 && inner > 1 && stride != step_inner * inner;
      if (apart) return "joins axes that do not lie together in memory";
      const int64_t joined = inner != 1 || size == 1 ? step_inner : stride;
      remove_axis(view, at + 1);
      size = merged;
      stride = joined;
      return nullptr;
    }
    case ViewStep::Kind::Nibbles:
      if (__builtin_mul_overflow(size, 2, &size)) return "makes an axis of too many elements";
      for (int d = 0; d < at; ++d) view->strides[static_cast<size_t>(d)] *= 2;
      return nullptr;
    default:  // Squeeze
      if (size != 1) return "leaves out an axis of more or less than one element";
      remove_axis(view, at);
      return nullptr;
  }
}

}  // namespace

int64_t sliced_size(const AxisSlice& slice, int64_t size, int64_t* first) {
  const auto place = [size](int64_t index) { return std::clamp<int64_t>(index < 0 ? index + size : index, 0, size); };
  *first = place(slice.start);
  const int64_t length = place(slice.end) - *first;
  return length <= 0 ? 0 : (length - 1) / slice.step + 1;
}

bool parse_view_steps(std::string_view text, std::vector<ViewStep>* steps) {
  while (steps->size() < kMaxViewSteps) {
    const size_t comma = text.find(',');
    ViewStep step{};
    if (!parse_step(text.substr(0, comma), &step)) return false;
    if (step.kind == ViewStep::Kind::Nibbles && !steps->empty()) return false;
    steps->push_back(step);
    if (comma == std::string_view::npos) return true;
    text.remove_prefix(comma + 1);
  }
  return false;
}

std::string to_string(const ViewStep& step) {
  const StepName* const named =
      std::find_if(std::begin(kNames), std::end(kNames), [&](const StepName& n) { return n.kind == step.kind; });
  std::string text = named->name + std::string(":");
  if (step.kind == ViewStep::Kind::Permute) {
    for (int d = 0; d < step.rank; ++d) text += (d > 0 ? "." : "") + std::to_string(step.order[static_cast<size_t>(d)]);
    return text;
  }
  text += std::to_string(step.axis);
  for (int i = 0; i < named->numbers; ++i) text += ":" + std::to_string(step.numbers[i]);
  return text;
}

bool split_size(const ViewStep& step, int64_t size, int64_t* outer, int64_t* inner) {
  *outer = step.numbers[0] < 0 ? size / step.numbers[1] : step.numbers[0];
  *inner = step.numbers[1] < 0 ? size / step.numbers[0] : step.numbers[1];
  int64_t product = 0;
  return !__builtin_mul_overflow(*outer, *inner, &product) && product == size;
}

bool apply_view_steps(const std::vector<ViewStep>& steps, View* view, std::string* error) {
  for (const ViewStep& step : steps) {
    const Shape before = view->shape;
    if (const char* const problem = apply(step, view)) {
      *error = "'" + to_string(step) + "' of shape " + to_string(before) + " " + problem;
      return false;
    }
  }
  return true;
}

}  // namespace onnxfuse
