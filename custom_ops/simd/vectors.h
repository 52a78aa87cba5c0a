// Vectors of floats in registers: reading, writing, shuffling.  Compiled once for each instruction set, as vector_math.h is.
#ifndef ONNXFUSE_VECTORS_H_
#define ONNXFUSE_VECTORS_H_

#include <utility>

#include "simd/vector_math.h"

namespace onnxfuse {
namespace ONNXFUSE_ISA {

// Unaligned, and of any type.
template <class V> inline __attribute__((always_inline)) V load(const void* from) {
  V value;
  __builtin_memcpy(&value, from, sizeof(V));
  return value;
}

template <class V> inline __attribute__((always_inline)) void store(void* to, const V& value) {
  __builtin_memcpy(to, &value, sizeof(V));
}

constexpr size_t kFloats = sizeof(math::FloatVector) / sizeof(float);

// Floats of a cache line.
constexpr size_t kLineFloats = 16;

// The cache lines of so many floats.
constexpr size_t lines_of(size_t floats) { return (floats + kLineFloats - 1) / kLineFloats; }

template <class V> constexpr size_t floats_of = sizeof(V) / sizeof(float);

// Half a vector costs half as much where the processor computes whole ones in two steps.
#if defined(__AVX512VL__)
typedef float HalfVector __attribute__((vector_size(math::kVectorBytes / 2)));
ONNXFUSE_INLINE HalfVector multiply_add(HalfVector a, HalfVector b, HalfVector c) { return _mm256_fmadd_ps(a, b, c); }
constexpr bool kHasHalves = true;
#else
using HalfVector = math::FloatVector;
constexpr bool kHasHalves = false;
#endif
ONNXFUSE_INLINE math::FloatVector multiply_add(math::FloatVector a, math::FloatVector b, math::FloatVector c) {
  return math::madd(a, b, c);
}

// What is read once.  The compiler would rather read it again for each product, which takes longer where a product takes
// no longer than to read a vector; where registers are few it is right.
ONNXFUSE_INLINE math::FloatVector in_register(math::FloatVector x) {
#if defined(__AVX512F__)
  asm("" : "+v"(x));
#endif
  return x;
}

// ------------------------------------------------------------------------------------------------ edges of an image

ONNXFUSE_INLINE ptrdiff_t between(ptrdiff_t low, ptrdiff_t x, ptrdiff_t high) {
  return x < low ? low : (x > high ? high : x);
}

// Which elements of a vector, that begins at element `first` of a row of so many, lie in the row.
#if defined(__AVX512F__)
using Inside = __mmask16;
ONNXFUSE_INLINE Inside inside(ptrdiff_t first, ptrdiff_t size) {
  const ptrdiff_t begin = between(0, -first, 16);
  const ptrdiff_t end = between(begin, size - first, 16);
  return static_cast<Inside>((1u << end) - (1u << begin));
}
// Those elements, and zeros for the others, which are not read.
ONNXFUSE_INLINE math::FloatVector load_inside(const float* from, Inside lanes) {
  return reinterpret_cast<math::FloatVector>(_mm512_maskz_loadu_ps(lanes, from));
}
// Those elements of `x`, and the others of `y`.
ONNXFUSE_INLINE math::FloatVector chosen(Inside lanes, math::FloatVector x, math::FloatVector y) {
  return reinterpret_cast<math::FloatVector>(
      _mm512_mask_mov_ps(reinterpret_cast<__m512>(y), lanes, reinterpret_cast<__m512>(x)));
}
#elif defined(__AVX2__)
using Inside = __m256i;
ONNXFUSE_INLINE Inside inside(ptrdiff_t first, ptrdiff_t size) {
  const ptrdiff_t begin = between(0, -first, 8);
  const ptrdiff_t end = between(begin, size - first, 8);
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i before = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(begin)), lanes);
  return _mm256_andnot_si256(before, _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(end)), lanes));
}
ONNXFUSE_INLINE math::FloatVector load_inside(const float* from, Inside lanes) {
  return reinterpret_cast<math::FloatVector>(_mm256_maskload_ps(from, lanes));
}
ONNXFUSE_INLINE math::FloatVector chosen(Inside lanes, math::FloatVector x, math::FloatVector y) {
  return reinterpret_cast<math::FloatVector>((reinterpret_cast<__m256i>(x) & lanes) | (reinterpret_cast<__m256i>(y) & ~lanes));
}
#else
struct Inside {
  ptrdiff_t begin;
  ptrdiff_t end;
};
ONNXFUSE_INLINE Inside inside(ptrdiff_t first, ptrdiff_t size) {
  constexpr auto floats = static_cast<ptrdiff_t>(kFloats);
  const ptrdiff_t begin = between(0, -first, floats);
  return {begin, between(begin, size - first, floats)};
}
inline __attribute__((noinline)) math::FloatVector load_inside(const float* from, Inside lanes) {
  float elements[kFloats] = {};
  for (ptrdiff_t i = lanes.begin; i < lanes.end; ++i) elements[i] = from[i];
  return load<math::FloatVector>(elements);
}
ONNXFUSE_INLINE math::FloatVector chosen(Inside lanes, math::FloatVector x, math::FloatVector y) {
  for (ptrdiff_t i = lanes.begin; i < lanes.end; ++i) y[i] = x[i];
  return y;
}
#endif

// Which elements of a vector are from `first` on, 0 or more.
#if defined(__AVX512F__)
using LastLanes = __mmask16;
ONNXFUSE_INLINE LastLanes last_lanes(ptrdiff_t first) { return static_cast<LastLanes>(0xffffu << between(0, first, 16)); }
// Those of `a`, and the others of `b`.
ONNXFUSE_INLINE math::FloatVector blend(LastLanes lanes, math::FloatVector a, math::FloatVector b) {
  return reinterpret_cast<math::FloatVector>(
      _mm512_mask_mov_ps(reinterpret_cast<__m512>(b), lanes, reinterpret_cast<__m512>(a)));
}
#else
typedef int LastLanes __attribute__((vector_size(sizeof(math::FloatVector))));
ONNXFUSE_INLINE LastLanes last_lanes(ptrdiff_t first) {
  LastLanes lanes;
  for (ptrdiff_t i = 0; i < static_cast<ptrdiff_t>(kFloats); ++i) lanes[i] = i < first ? 0 : -1;
  return lanes;
}
ONNXFUSE_INLINE math::FloatVector blend(LastLanes lanes, math::FloatVector a, math::FloatVector b) {
  return reinterpret_cast<math::FloatVector>((reinterpret_cast<LastLanes>(a) & lanes) | (reinterpret_cast<LastLanes>(b) & ~lanes));
}
#endif

// Elements of a vector by their numbers.
typedef int Places __attribute__((vector_size(sizeof(math::FloatVector))));

// For each element the last multiple of `n` that is not behind it.
ONNXFUSE_INLINE Places multiples(size_t n) {
  Places places;
  for (size_t i = 0; i < kFloats; ++i) places[i] = static_cast<int>(i / n * n);
  return places;
}

ONNXFUSE_INLINE math::FloatVector at_places(math::FloatVector x, Places places) {
#if defined(__AVX512F__)
  return reinterpret_cast<math::FloatVector>(
      _mm512_maskz_permutexvar_ps(0xffff, reinterpret_cast<__m512i>(places), reinterpret_cast<__m512>(x)));
#elif defined(__AVX2__)
  return reinterpret_cast<math::FloatVector>(
      _mm256_permutevar8x32_ps(reinterpret_cast<__m256>(x), reinterpret_cast<__m256i>(places)));
#else
  math::FloatVector found;
  for (size_t i = 0; i < kFloats; ++i) found[i] = x[places[i]];
  return found;
#endif
}

// Stores the first `n` elements of a vector.
ONNXFUSE_INLINE void store_some(float* to, const math::FloatVector& x, size_t n) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << n) - 1), reinterpret_cast<const __m512&>(x));
#else
  for (size_t i = 0; i < n; ++i) to[i] = x[i];
#endif
}

// A masked load costs no more than another where the instruction set has masks; elsewhere only vectors at the edges of
// an image are loaded so.
#if defined(__AVX512F__)
constexpr bool kFreeMasks = true;
#else
constexpr bool kFreeMasks = false;
#endif

// ------------------------------------------------------------------------------------------------ shuffles

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define ONNXFUSE_SHUFFLES
#endif
#endif

// Elements `I` of `a` and, behind those, of `b`.
template <size_t... I>
ONNXFUSE_INLINE math::FloatVector picked(math::FloatVector a, math::FloatVector b, std::index_sequence<I...>) {
#if defined(ONNXFUSE_SHUFFLES)
  return __builtin_shufflevector(a, b, I...);
#else
  return math::FloatVector{(I < kFloats ? a[I % kFloats] : b[I % kFloats])...};
#endif
}

// The elements of `a` and `b` at even places.
template <size_t... I>
ONNXFUSE_INLINE math::FloatVector evens(math::FloatVector a, math::FloatVector b, std::index_sequence<I...>) {
  return picked(a, b, std::index_sequence<(2 * I)...>{});
}

// The same in an order that costs a single instruction: of each 16 bytes, those of `a` and then those of `b`.
// `evens_in_order` puts what was computed of them in order.
template <size_t... I>
ONNXFUSE_INLINE math::FloatVector evens_by_lane(math::FloatVector a, math::FloatVector b, std::index_sequence<I...>) {
  return picked(a, b, std::index_sequence<(I / 4 * 4 + I % 2 * 2 + I % 4 / 2 * kFloats)...>{});
}

template <size_t... I>
ONNXFUSE_INLINE math::FloatVector evens_in_order(math::FloatVector x, std::index_sequence<I...>) {
  constexpr size_t kHalf = kFloats / 2;
  return picked(x, x, std::index_sequence<(I % kHalf / 2 * 4 + I % 2 + I / kHalf * 2)...>{});
}

// The first or second half of `a` and `b`, an element of each in turn.
template <size_t Begin, size_t... I>
ONNXFUSE_INLINE math::FloatVector zipped(math::FloatVector a, math::FloatVector b, std::index_sequence<I...>) {
  return picked(a, b, std::index_sequence<(Begin + I / 2 + I % 2 * kFloats)...>{});
}

using Lanes = std::make_index_sequence<kFloats>;

// The elements from `Begin` on, and behind them those before.
template <size_t Begin, size_t... I>
ONNXFUSE_INLINE math::FloatVector rotated(math::FloatVector x, std::index_sequence<I...>) {
  return picked(x, x, std::index_sequence<((I + Begin) % kFloats)...>{});
}

// What `join`, which may take its operands in any order, makes of all elements: in halves, for each step waits for the
// one before.
template <size_t Half = kFloats / 2, class Join>
ONNXFUSE_INLINE float joined(math::FloatVector x, const Join& join) {
  x = join(x, rotated<Half>(x, Lanes{}));
  if constexpr (Half == 1) {
    return x[0];
  } else {
    return joined<Half / 2>(x, join);
  }
}

// `add`s the first `whole` elements of a row, whole vectors of them, to `totals`: in parts, which begin anew every so many
// elements, for the error of a sum grows with its length.
template <int Count, class Add>
ONNXFUSE_INLINE void add_vectors(const float* row, size_t whole, math::FloatVector (&totals)[Count], const Add& add) {
  using V = math::FloatVector;
  constexpr size_t kParts = 4;
  constexpr size_t kBlock = 64 * kParts * kFloats;
  for (size_t i = 0; i < whole;) {
    const size_t end = whole - i > kBlock ? i + kBlock : whole;
    V parts[kParts][Count] = {};
    for (; i + kParts * kFloats <= end; i += kParts * kFloats) {
#pragma GCC unroll 4
      for (size_t p = 0; p < kParts; ++p) add(load<V>(row + i + p * kFloats), parts[p]);
    }
#pragma GCC unroll 4
    for (size_t p = 0; p + 1 < kParts; ++p) {  // unrolled, or else the parts would be in memory
      if (i == end) break;
      add(load<V>(row + i), parts[p]);
      i += kFloats;
    }
    for (int t = 0; t < Count; ++t) totals[t] += (parts[0][t] + parts[1][t]) + (parts[2][t] + parts[3][t]);
  }
}

// Transposes a square of vectors.
ONNXFUSE_INLINE void transpose(math::FloatVector (&x)[kFloats]) {
#if defined(ONNXFUSE_SHUFFLES)
  // Each round takes half a vector with its counterpart: after as many as an index has bits, rows are columns.
#pragma GCC unroll 4
  for (size_t round = 1; round < kFloats; round *= 2) {
    math::FloatVector y[kFloats];
#pragma GCC unroll 16
    for (size_t i = 0; i < kFloats / 2; ++i) {
      y[2 * i] = zipped<0>(x[i], x[i + kFloats / 2], Lanes{});
      y[2 * i + 1] = zipped<kFloats / 2>(x[i], x[i + kFloats / 2], Lanes{});
    }
#pragma GCC unroll 16
    for (size_t i = 0; i < kFloats; ++i) x[i] = y[i];
  }
#else
  for (size_t i = 0; i < kFloats; ++i) {
    for (size_t j = 0; j < i; ++j) {
      const float other = x[i][j];
      x[i][j] = x[j][i];
      x[j][i] = other;
    }
  }
#endif
}

}  // namespace ONNXFUSE_ISA
}  // namespace onnxfuse

#endif  // ONNXFUSE_VECTORS_H_
