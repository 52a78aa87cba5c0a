#include "runtime/gather.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "figures/programs.h"
#include "platform/cache_lines.h"

namespace onnxfuse {
namespace {

// Of a row that is read transposed, so many elements are read at a time.
constexpr int64_t kTransposedBlock = 16;

typedef uint64_t Vector __attribute__((vector_size(16)));

// Rows of one length, each behind the other in the result.
struct Rows {
  int64_t count;
  size_t bytes;  // of a row
  int64_t step;  // bytes from one row's data to the next row's
};

// Elements of a row are `apart` bytes from each other.
template <class Element> void pick_elements(const Rows& rows, int64_t apart, const char* from, char* out) {
  const size_t columns = rows.bytes / sizeof(Element);
  for (int64_t row = 0; row < rows.count; ++row) {
    for (size_t i = 0; i < columns; ++i) {
      std::memcpy(out + i * sizeof(Element), from + static_cast<int64_t>(i) * apart, sizeof(Element));
    }
    out += rows.bytes;
    from += rows.step;
  }
}

void pick_elements(const Rows& rows, size_t size, int64_t apart, const char* from, char* out) {
  switch (size) {
    case 1:
      return pick_elements<uint8_t>(rows, apart, from, out);
    case 2:
      return pick_elements<uint16_t>(rows, apart, from, out);
    case 4:
      return pick_elements<uint32_t>(rows, apart, from, out);
    default:
      return pick_elements<uint64_t>(rows, apart, from, out);
  }
}

template <class Element> struct ElementVector {
  typedef Element type __attribute__((vector_size(sizeof(Vector))));
};

// The elements of two vectors in turns, of their first halves or of their second ones.
template <size_t Begin, class V, size_t... I> V in_turns(V a, V b, std::index_sequence<I...>) {
  return V{(I % 2 == 0 ? a[Begin + I / 2] : b[Begin + I / 2])...};
}

// As many elements of each of as many rows as a vector has.
template <class Element> void transpose_square(int64_t apart, const char* from, char* out, int64_t pitch) {
  using V = typename ElementVector<Element>::type;
  constexpr size_t kSide = sizeof(V) / sizeof(Element);
  constexpr std::make_index_sequence<kSide> lanes;
  V x[kSide];
#pragma GCC unroll 16
  for (size_t i = 0; i < kSide; ++i) std::memcpy(&x[i], from + static_cast<int64_t>(i) * apart, sizeof(V));
#pragma GCC unroll 4
  for (size_t step = 1; step < kSide; step *= 2) {
    V y[kSide];
#pragma GCC unroll 16
    for (size_t i = 0; i < kSide / 2; ++i) {
      y[2 * i] = in_turns<0>(x[i], x[i + kSide / 2], lanes);
      y[2 * i + 1] = in_turns<kSide / 2>(x[i], x[i + kSide / 2], lanes);
    }
#pragma GCC unroll 16
    for (size_t i = 0; i < kSide; ++i) x[i] = y[i];
  }
#pragma GCC unroll 16
  for (size_t i = 0; i < kSide; ++i) std::memcpy(out + static_cast<int64_t>(i) * pitch, &x[i], sizeof(V));
}

// `width` elements of each of `count` rows, `pitch` bytes apart in the result, where those of a column lie side by side.
template <class Element>
void transpose_block(int64_t count, int64_t width, int64_t apart, const char* from, char* out, int64_t pitch) {
  constexpr auto size = static_cast<int64_t>(sizeof(Element));
  constexpr auto side = static_cast<int64_t>(sizeof(Vector)) / size;
  const int64_t whole_rows = count / side * side;
  const int64_t whole = width / side * side;
  for (int64_t row = 0; row < whole_rows; row += side) {
    for (int64_t i = 0; i < whole; i += side) {
      transpose_square<Element>(apart, from + i * apart + row * size, out + row * pitch + i * size, pitch);
    }
  }
  for (int64_t row = 0; row < count; ++row) {
    for (int64_t i = row < whole_rows ? whole : 0; i < width; ++i) {
      std::memcpy(out + row * pitch + i * size, from + i * apart + row * size, sizeof(Element));
    }
  }
}

void transpose_block(size_t size, int64_t count, int64_t width, int64_t apart, const char* from, char* out, int64_t pitch) {
  switch (size) {
    case 1:
      return transpose_block<uint8_t>(count, width, apart, from, out, pitch);
    case 2:
      return transpose_block<uint16_t>(count, width, apart, from, out, pitch);
    case 4:
      return kernels().transpose_rows(reinterpret_cast<float*>(out), static_cast<size_t>(pitch) / sizeof(float),
                                      reinterpret_cast<const float*>(from), static_cast<size_t>(apart) / sizeof(float),
                                      static_cast<size_t>(width), static_cast<size_t>(count));
    default:
      return transpose_block<uint64_t>(count, width, apart, from, out, pitch);
  }
}

// Where the elements of the rows' counterparts, one of each row, lie side by side: each is read whole.  Elements of a row are
// `apart` bytes from each other.  Meanwhile as many are fetched that begin at `next`, unless that is null.
void transpose_elements(const Rows& rows, size_t size, int64_t apart, const char* from, const char* next, char* out) {
  const auto element = static_cast<int64_t>(size);
  const auto pitch = static_cast<int64_t>(rows.bytes);
  const int64_t columns = pitch / element;
  const int64_t block = size == sizeof(float) && next == nullptr ? columns : kTransposedBlock;
  for (int64_t first = 0; first < columns; first += block) {
    const int64_t width = std::min(block, columns - first);
    for (int64_t i = first; next != nullptr && i < first + width; ++i) {
      fetch_lines(next + i * apart, static_cast<size_t>(rows.count * element));
    }
    transpose_block(size, rows.count, width, apart, from + first * apart, out + first * element, pitch);
  }
}

void copy_rows(const Rows& rows, const char* from, char* out) {
  for (int64_t row = 0; row < rows.count; ++row) {
    std::memcpy(out, from, rows.bytes);
    out += rows.bytes;
    from += rows.step;
  }
}

// Where a call takes longer than the copy.
void copy_few(const char* from, size_t bytes, char* out) {
  if (bytes < sizeof(Vector) || bytes > 32 * sizeof(Vector)) {
    std::memcpy(out, from, bytes);
    return;
  }
  const char* const last = from + bytes - sizeof(Vector);
  char* const last_out = out + bytes - sizeof(Vector);
  for (; from < last; from += sizeof(Vector), out += sizeof(Vector)) __builtin_memcpy(out, from, sizeof(Vector));
  __builtin_memcpy(last_out, last, sizeof(Vector));
}

// Rows of pairs of halves, each of `half` bytes and read in the place of the other, from byte `column` of a row on.
void swap_halves(const Rows& rows, size_t half, size_t column, const char* from, char* out) {
  for (int64_t row = 0; row < rows.count; ++row) {
    const bool second = column / half % 2 != 0;
    const char* pair = from + (column / (2 * half)) * (2 * half);
    size_t within = column % half;
    size_t left = rows.bytes;
    for (bool in_second = second; left > 0; in_second = !in_second) {
      const size_t bytes = std::min(half - within, left);
      copy_few(pair + (in_second ? 0 : half) + within, bytes, out);
      out += bytes;
      left -= bytes;
      within = 0;
      if (in_second) pair += 2 * half;
    }
    from += rows.step;
  }
}

// Where element `number` of the stage is in the data.
int64_t offset_of(const Slot& slot, int64_t number) {
  int64_t offset = 0;
  for (size_t d = slot.dims.size(); d-- > 0; number /= slot.dims[d]) offset += number % slot.dims[d] * slot.strides[d];
  return offset;
}

// Calls rows(Rows, offset, column) for `count` elements of the stage from number `start` on: rows of them that are alike,
// the first of which begins at element `offset` of the data and at `column` of a row.
template <class TakeRows>
void for_rows(const Slot& slot, int64_t start, size_t count, const TakeRows& take_rows) {
  const auto size = static_cast<int64_t>(slot.size);
  const size_t rank = slot.dims.size();
  if (rank == 1) return take_rows({1, count * slot.size, 0}, start * slot.strides[0], start);
  int64_t index[kMaxRank];
  int64_t offset = 0;
  int64_t rest = start;
  for (size_t d = rank; d-- > 0;) {
    index[d] = rest % slot.dims[d];
    rest /= slot.dims[d];
    offset += index[d] * slot.strides[d];
  }
  const int64_t columns = slot.dims[rank - 1];
  const int64_t inner = slot.strides[rank - 1];
  const int64_t outer = slot.strides[rank - 2];
  for (auto left = static_cast<int64_t>(count); left > 0;) {
    // As many whole rows as there are along the next dimension, or a part of one.
    const int64_t run = std::min(columns - index[rank - 1], left);
    const int64_t whole = std::min(left / columns, slot.dims[rank - 2] - index[rank - 2]);
    const Rows rows{run == columns ? whole : 1, static_cast<size_t>(run * size), outer * size};
    take_rows(rows, offset, index[rank - 1]);
    left -= run * rows.count;
    offset -= index[rank - 1] * inner;
    index[rank - 1] = 0;
    offset += rows.count * outer;
    index[rank - 2] += rows.count;
    for (size_t d = rank - 2; d > 0 && index[d] == slot.dims[d]; --d) {
      offset += slot.strides[d - 1] - slot.strides[d] * slot.dims[d];
      index[d] = 0;
      ++index[d - 1];
    }
  }
}

template <class T> void count_elements(const Slot& slot, int64_t start, size_t count, char* out) {
  for_rows(slot, start, count, [&](const Rows& rows, int64_t offset, int64_t) {
    const auto columns = static_cast<int64_t>(rows.bytes / sizeof(T));
    for (int64_t row = 0; row < rows.count; ++row, offset += rows.step / static_cast<int64_t>(sizeof(T))) {
      for (int64_t i = 0; i < columns; ++i) {
        const T number = static_cast<T>(offset + i * slot.strides.back());
        std::memcpy(out + i * static_cast<int64_t>(sizeof(T)), &number, sizeof(T));
      }
      out += rows.bytes;
    }
  });
}

}  // namespace

void gather(const Slot& slot, const char* data, int64_t start, size_t count, char* out, int64_t next) {
  const auto size = static_cast<int64_t>(slot.size);
  const char* const begin = out;
  for_rows(slot, start, count, [&](const Rows& rows, int64_t offset, int64_t column) {
    const char* const from = data + offset * size;
    const int64_t inner = slot.strides.back();
    if (slot.half != 0) {
      swap_halves(rows, static_cast<size_t>(slot.half * size), static_cast<size_t>(column * size), from - column * size, out);
    } else if (inner == 0) {
      kernels().repeat_elements({slot.size, from, rows.step, out, rows.bytes, rows.count});
    } else if (inner == 1) {
      copy_rows(rows, from, out);
    } else if (rows.count > 1 && rows.step == size) {
      const int64_t before = (out - begin) / size;
      const char* const fetched = next < 0 ? nullptr : data + offset_of(slot, next + before) * size;
      transpose_elements(rows, slot.size, inner * size, from, fetched, out);
    } else {
      pick_elements(rows, slot.size, inner * size, from, out);
    }
    out += rows.bytes * static_cast<size_t>(rows.count);
  });
}

void scatter(const Slot& slot, const char* from, int64_t start, size_t count, char* data) {
  const size_t size = slot.size;
  int64_t row = start / slot.run;
  int64_t column = start % slot.run;
  for (size_t left = count; left > 0; ++row, column = 0) {
    const size_t run = std::min(left, static_cast<size_t>(slot.run - column));
    copy_few(from, run * size, data + static_cast<size_t>(row * slot.step + column) * size);
    from += run * size;
    left -= run;
  }
}

void coordinates(const Slot& slot, DType type, int64_t start, size_t count, char* out) {
  switch (type) {
    case DType::f32:
      return count_elements<float>(slot, start, count, out);
    case DType::f64:
      return count_elements<double>(slot, start, count, out);
    case DType::i8: case DType::u8:
      return count_elements<uint8_t>(slot, start, count, out);
    case DType::i16: case DType::u16:
      return count_elements<uint16_t>(slot, start, count, out);
    case DType::i32: case DType::u32:
      return count_elements<uint32_t>(slot, start, count, out);
    default:
      return count_elements<uint64_t>(slot, start, count, out);
  }
}

}  // namespace onnxfuse
