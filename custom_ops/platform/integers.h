// Arithmetic on sizes, and on lists of them.
#ifndef ONNXFUSE_INTEGERS_H_
#define ONNXFUSE_INTEGERS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

namespace onnxfuse {

// For n >= 0.
template <class Integer>
constexpr Integer divide_up(Integer n, Integer by) {
  return n / by + (n % by != 0 ? 1 : 0);
}

// The next multiple that is not less than n >= 0.
template <class Integer>
constexpr Integer round_up(Integer n, Integer multiple) {
  return divide_up(n, multiple) * multiple;
}

// Each value once, in ascending order.
inline std::vector<int64_t> distinct(std::vector<int64_t> values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

}  // namespace onnxfuse

#endif  // ONNXFUSE_INTEGERS_H_
