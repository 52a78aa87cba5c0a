// How a Program sees a tensor that lies in memory in another shape or order, as onnxfuse/program/view_steps.py has it.
#ifndef ONNXFUSE_VIEW_STEPS_H_
#define ONNXFUSE_VIEW_STEPS_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "figures/programs.h"
#include "program/shape.h"

namespace onnxfuse {

// What is read along one axis of a tensor, as ONNX's Slice reads it: from `start` up to but not including `end`, both
// counted from the back if negative and moved into the axis, every `step`-th element.
struct AxisSlice {
  int axis;  // counted from the front, or from the back if negative
  int64_t start;
  int64_t end;
  int64_t step;  // at least 1
};

// Elements that a slice leaves of `size`, from element `first` on.
int64_t sliced_size(const AxisSlice& slice, int64_t size, int64_t* first);

struct ViewStep {
  enum class Kind : uint8_t { Slice, Split, Merge, Permute, Squeeze, Unsqueeze, Nibbles };

  Kind kind;
  int8_t axis = 0;  // counted from the back, and negative; not of Permute
  int8_t rank = 0;  // Permute
  std::array<int8_t, kMaxRank> order{};  // Permute: the axes, counted from the front
  int64_t numbers[3] = {};               // Slice: start, end, step; Split: outer, inner, one of which may be -1

  AxisSlice slice() const { return {axis, numbers[0], numbers[1], numbers[2]}; }
};

// Whether what is read are halves of bytes: its first step says so then, and elements are these.
inline bool has_nibbles(const std::vector<ViewStep>& steps) {
  return !steps.empty() && steps[0].kind == ViewStep::Kind::Nibbles;
}

// Reads steps, separated by commas, as onnxfuse/program/view_steps.py writes them.  False for what is none.
bool parse_view_steps(std::string_view text, std::vector<ViewStep>* steps);

// The step as it is written.
std::string to_string(const ViewStep& step);

// The sizes of the two axes that one of `size` elements is split into; false if there are none.
bool split_size(const ViewStep& step, int64_t size, int64_t* outer, int64_t* inner);

// Makes of a tensor, as it is read so far, what the steps make of it.  False where they do not fit; then `error` says why.
bool apply_view_steps(const std::vector<ViewStep>& steps, View* view, std::string* error);

}  // namespace onnxfuse

#endif  // ONNXFUSE_VIEW_STEPS_H_
