// How blocks share the elements of a row that one block would take too long for.
#ifndef ONNXFUSE_CUDA_SPLITS_H_
#define ONNXFUSE_CUDA_SPLITS_H_

#include <cstdint>

#include "platform/integers.h"

namespace onnxfuse::cuda {

// Into `splits` parts of `chunk` elements.
struct Splits {
  int64_t splits = 1;
  int64_t chunk = 0;
};

// `wanted` parts at the most, of whole groups but for the last; one for fewer than two.
inline Splits split_row(int64_t length, int64_t group, int64_t wanted) {
  if (wanted < 2) return {1, length};
  const int64_t chunk = round_up(divide_up(length, wanted), group);
  return {divide_up(length, chunk), chunk};
}

}  // namespace onnxfuse::cuda

#endif  // ONNXFUSE_CUDA_SPLITS_H_
