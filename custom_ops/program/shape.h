// Shapes, broadcasting and the collapsing of dimensions; all arithmetic is 64-bit and checked.
#ifndef ONNXFUSE_SHAPE_H_
#define ONNXFUSE_SHAPE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "figures/programs.h"

namespace onnxfuse {

struct Shape {
  int rank = 0;
  std::array<int64_t, kMaxRank> dims{};

  // Dimension `index` counted from the back (0 is the last), 1 beyond the front.
  int64_t from_back(int index) const { return index < rank ? dims[rank - 1 - index] : 1; }

  bool operator==(const Shape& other) const {
    if (rank != other.rank) return false;
    for (int i = 0; i < rank; ++i) {
      if (dims[i] != other.dims[i]) return false;
    }
    return true;
  }
  bool operator!=(const Shape& other) const { return !(*this == other); }
};

// "[2,3]"
std::string to_string(const Shape& shape);

// Elements of the shape; false if a dimension is negative or the bytes at 16 bytes an element overflow int64.
bool element_count(const Shape& shape, int64_t* count);

// NumPy's trailing-aligned multidirectional broadcasting; false if the shapes do not fit.
bool broadcast(const Shape& a, const Shape& b, Shape* out);

// The shape without leading ones: shapes that differ only there index the same elements in the same order.
Shape without_leading_ones(const Shape& shape);

// A tensor as it is read: `strides` are elements from one place along a dimension to the next, in the order of `shape`,
// and `offset` that of its first element.
struct View {
  Shape shape;
  std::array<int64_t, kMaxRank> strides{};
  int64_t offset = 0;
};

// All of a tensor that is dense.
View whole_view(const Shape& shape);

// The iteration space of a stage after merging of dimensions: `dims` from outer to inner, and for each source its
// strides in elements (0: broadcast along that dimension).
struct Collapsed {
  std::vector<int64_t> dims;
  std::vector<std::vector<int64_t>> strides;  // [source][dimension]
};

// Merges every run of dimensions of `shape` that all `sources` (each broadcastable to `shape`) step through alike, and
// drops ones.  `dims` is empty for a single element.
Collapsed collapse(const Shape& shape, const std::vector<View>& sources);

}  // namespace onnxfuse

#endif  // ONNXFUSE_SHAPE_H_
