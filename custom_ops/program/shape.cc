#include "program/shape.h"

#include <algorithm>

namespace onnxfuse {

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.rank; ++i) {
    if (i > 0) text += ',';
    text += std::to_string(shape.dims[i]);
  }
  return text + "]";
}

bool element_count(const Shape& shape, int64_t* count) {
  int64_t total = 1;
  bool overflow = false;
  bool zero = false;
  for (int i = 0; i < shape.rank; ++i) {
    if (shape.dims[i] < 0) return false;
    zero |= shape.dims[i] == 0;
    overflow |= __builtin_mul_overflow(total, std::max<int64_t>(shape.dims[i], 1), &total);
  }
  *count = zero ? 0 : total;
  return zero || (!overflow && total <= INT64_MAX / 16);
}

bool broadcast(const Shape& a, const Shape& b, Shape* out) {
  Shape result;
  result.rank = std::max(a.rank, b.rank);
  for (int i = 0; i < result.rank; ++i) {
    const int64_t x = a.from_back(i);
    const int64_t y = b.from_back(i);
    if (x != y && x != 1 && y != 1) return false;
    result.dims[result.rank - 1 - i] = x == 1 ? y : x;
  }
  *out = result;
  return true;
}

Shape without_leading_ones(const Shape& shape) {
  int skip = 0;
  while (skip < shape.rank && shape.dims[skip] == 1) ++skip;
  Shape result;
  result.rank = shape.rank - skip;
  std::copy(shape.dims.begin() + skip, shape.dims.begin() + shape.rank, result.dims.begin());
  return result;
}

View whole_view(const Shape& shape) {
  View view;
  view.shape = shape;
  const auto end = shape.dims.begin() + shape.rank;
  if (std::find(shape.dims.begin(), end, 0) != end) return view;  // the other sizes may be any
  int64_t step = 1;
  for (int d = shape.rank; d-- > 0;) {
    view.strides[static_cast<size_t>(d)] = step;
    step *= shape.dims[static_cast<size_t>(d)];
  }
  return view;
}

Collapsed collapse(const Shape& shape, const std::vector<View>& sources) {
  // Built from the inner dimension outwards, and turned round at the end.
  Collapsed result;
  result.strides.resize(sources.size());
  std::vector<int64_t> strides(sources.size());
  for (int i = 0; i < shape.rank; ++i) {
    const int64_t size = shape.from_back(i);
    if (size == 1) continue;
    bool merge = !result.dims.empty();
    for (size_t s = 0; s < sources.size(); ++s) {
      const View& source = sources[s];
      const bool repeats = source.shape.from_back(i) == 1;
      strides[s] = repeats ? 0 : source.strides[static_cast<size_t>(source.shape.rank - 1 - i)];
      merge = merge && strides[s] == result.strides[s].back() * result.dims.back();
    }
    if (merge) {
      result.dims.back() *= size;
    } else {
      result.dims.push_back(size);
      for (size_t s = 0; s < sources.size(); ++s) result.strides[s].push_back(strides[s]);
    }
  }
  std::reverse(result.dims.begin(), result.dims.end());
  for (auto& source : result.strides) std::reverse(source.begin(), source.end());
  return result;
}

}  // namespace onnxfuse
