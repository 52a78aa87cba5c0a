#include "gather.h"

#include <algorithm>
#include <cstring>

namespace onnxfuse {
namespace {

// As many copies of one element as eight bytes hold.
template <size_t Size> uint64_t repeated(const char* element) {
  char bytes[sizeof(uint64_t)];
  for (size_t i = 0; i < sizeof bytes; i += Size) std::memcpy(bytes + i, element, Size);
  uint64_t result;
  std::memcpy(&result, bytes, sizeof result);
  return result;
}

uint64_t repeated(const char* element, size_t size) {
  switch (size) {
    case 1:
      return repeated<1>(element);
    case 2:
      return repeated<2>(element);
    case 4:
      return repeated<4>(element);
    default:
      return repeated<8>(element);
  }
}

typedef uint64_t Vector __attribute__((vector_size(16)));

// Stores of `vector` from the first byte on, the last one up to the last byte: a whole number of elements from the first.
void fill(char* out, Vector vector, size_t bytes) {
  constexpr size_t at_once = 4;
  char* const last = out + bytes - sizeof vector;
  for (; last - out >= static_cast<ptrdiff_t>(at_once * sizeof vector); out += at_once * sizeof vector) {
#pragma GCC unroll 4
    for (size_t i = 0; i < at_once; ++i) std::memcpy(out + i * sizeof vector, &vector, sizeof vector);
  }
  for (; out < last; out += sizeof vector) std::memcpy(out, &vector, sizeof vector);
  std::memcpy(last, &vector, sizeof vector);
}

// Fills `bytes` bytes with one element of `size` bytes.
void fill(char* out, const char* element, size_t size, size_t bytes) {
  const uint64_t word = repeated(element, size);
  if (bytes >= sizeof(Vector)) {
    fill(out, Vector{word, word}, bytes);
  } else if (bytes >= sizeof word) {
    std::memcpy(out, &word, sizeof word);
    std::memcpy(out + bytes - sizeof word, &word, sizeof word);
  } else {
    std::memcpy(out, &word, bytes);
  }
}

}  // namespace

void gather(const Stage& stage, const Slot& slot, const char* data, int64_t start, size_t count, char* out) {
  const size_t rank = stage.dims.size();
  int64_t index[kMaxRank];
  int64_t offset = 0;
  int64_t rest = start;
  for (size_t d = rank; d-- > 0;) {
    index[d] = rest % stage.dims[d];
    rest /= stage.dims[d];
    offset += index[d] * slot.strides[d];
  }
  const int64_t columns = stage.dims[rank - 1];
  const int64_t inner = slot.strides[rank - 1];
  for (auto left = static_cast<int64_t>(count); left > 0;) {
    const int64_t run = std::min(columns - index[rank - 1], left);
    const char* from = data + offset * slot.size;
    const size_t bytes = static_cast<size_t>(run) * slot.size;
    if (inner != 0) {
      std::memcpy(out, from, bytes);
    } else {
      fill(out, from, slot.size, bytes);
    }
    out += bytes;
    left -= run;
    offset -= index[rank - 1] * inner;
    index[rank - 1] = 0;
    for (size_t d = rank - 1; d-- > 0;) {
      offset += slot.strides[d];
      if (++index[d] < stage.dims[d]) break;
      offset -= slot.strides[d] * stage.dims[d];
      index[d] = 0;
    }
  }
}

}  // namespace onnxfuse
