// Several vectors on which a function of vector_math.h computes in step.  One vector after another, each instruction waits for
// the one before it: the processor looks only so far ahead for what does not.
#ifndef ONNXFUSE_VECTOR_PACK_H_
#define ONNXFUSE_VECTOR_PACK_H_

#include <utility>

#include "simd/vector_math_core.h"

namespace onnxfuse {
namespace ONNXFUSE_ISA {
namespace math {

// So many are together where functions are written for packs; 1 where they are not, for registers are many and functions
// have instructions of their own.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kPacked = 1;
#else
constexpr int kPacked = 4;
#endif

template <class V, int N> struct Pack {
  V of[N];
};

// Each vector of packs, with what is one number for all.  Numbered when the program is compiled: in a loop the compiler would
// keep packs in memory.
template <int K, class V, int N> ONNXFUSE_INLINE V vector_of(const Pack<V, N>& x) { return x.of[K]; }
template <int, class T> ONNXFUSE_INLINE T vector_of(T x) { return x; }

template <int K, class Function, class... Operands> ONNXFUSE_INLINE auto of_vectors(Function function, Operands... x) {
  return function(vector_of<K>(x)...);
}

template <int... K, class Function, class... Operands>
ONNXFUSE_INLINE auto each_vector(std::integer_sequence<int, K...>, Function function, Operands... x) {
  return Pack<decltype(of_vectors<0>(function, x...)), sizeof...(K)>{{of_vectors<K>(function, x...)...}};
}

template <int N, class Function, class... Operands> ONNXFUSE_INLINE auto each_vector(Function function, Operands... x) {
  return each_vector(std::make_integer_sequence<int, N>{}, function, x...);
}

// kPacked vectors that `read(k)` gives, and `write(k, vector)` of each.
template <int... K, class Read> ONNXFUSE_INLINE auto read_pack(std::integer_sequence<int, K...>, Read read) {
  return Pack<decltype(read(0)), kPacked>{{read(K)...}};
}
template <class Read> ONNXFUSE_INLINE auto read_pack(Read read) {
  return read_pack(std::make_integer_sequence<int, kPacked>{}, read);
}
template <int... K, class V, class Write>
ONNXFUSE_INLINE void write_pack(std::integer_sequence<int, K...>, const Pack<V, kPacked>& x, Write write) {
  (write(K, x.of[K]), ...);
}
template <class V, class Write> ONNXFUSE_INLINE void write_pack(const Pack<V, kPacked>& x, Write write) {
  write_pack(std::make_integer_sequence<int, kPacked>{}, x, write);
}

template <class T> using if_number = std::enable_if_t<std::is_arithmetic_v<T>, int>;

#define ONNXFUSE_PACKED(op)                                                                                  \
  template <class V, class W, int N> ONNXFUSE_INLINE auto operator op(Pack<V, N> x, Pack<W, N> y) {          \
    return each_vector<N>([](auto a, auto b) { return a op b; }, x, y);                                      \
  }                                                                                                          \
  template <class V, int N, class T, if_number<T> = 0> ONNXFUSE_INLINE auto operator op(Pack<V, N> x, T y) { \
    return each_vector<N>([](auto a, T b) { return a op b; }, x, y);                                         \
  }                                                                                                          \
  template <class V, int N, class T, if_number<T> = 0> ONNXFUSE_INLINE auto operator op(T x, Pack<V, N> y) { \
    return each_vector<N>([](T a, auto b) { return a op b; }, x, y);                                         \
  }
ONNXFUSE_PACKED(+)
ONNXFUSE_PACKED(-)
ONNXFUSE_PACKED(*)
ONNXFUSE_PACKED(/)
ONNXFUSE_PACKED(&)
ONNXFUSE_PACKED(|)
ONNXFUSE_PACKED(<<)
ONNXFUSE_PACKED(>>)
ONNXFUSE_PACKED(<)
ONNXFUSE_PACKED(>)
ONNXFUSE_PACKED(==)
#undef ONNXFUSE_PACKED

template <class V, int N> ONNXFUSE_INLINE Pack<V, N> operator-(Pack<V, N> x) {
  return each_vector<N>([](V a) { return -a; }, x);
}

template <int N> ONNXFUSE_INLINE Pack<BitsVector, N> to_bits(Pack<FloatVector, N> x) {
  return each_vector<N>([](FloatVector a) { return to_bits(a); }, x);
}
template <int N> ONNXFUSE_INLINE Pack<FloatVector, N> from_bits(Pack<BitsVector, N> x) {
  return each_vector<N>([](BitsVector a) { return from_bits(a); }, x);
}
template <int N> ONNXFUSE_INLINE Pack<FloatVector, N> to_float(Pack<BitsVector, N> x) {
  return each_vector<N>([](BitsVector a) { return to_float(a); }, x);
}
template <int N, class B, class C> ONNXFUSE_INLINE Pack<FloatVector, N> madd(Pack<FloatVector, N> x, B y, C z) {
  return each_vector<N>([](FloatVector a, auto b, auto c) { return madd(a, b, c); }, x, y, z);
}
template <int N> ONNXFUSE_INLINE Pack<FloatVector, N> at_least(Pack<FloatVector, N> x, float low) {
  return each_vector<N>([](FloatVector a, float b) { return at_least(a, b); }, x, low);
}
template <int N> ONNXFUSE_INLINE Pack<FloatVector, N> at_most(Pack<FloatVector, N> x, float high) {
  return each_vector<N>([](FloatVector a, float b) { return at_most(a, b); }, x, high);
}
template <class M, class V, int N> ONNXFUSE_INLINE Pack<V, N> select(Pack<M, N> mask, Pack<V, N> x, Pack<V, N> y) {
  return each_vector<N>([](M m, V a, V b) { return select(m, a, b); }, mask, x, y);
}

}  // namespace math
}  // namespace ONNXFUSE_ISA
}  // namespace onnxfuse

#endif  // ONNXFUSE_VECTOR_PACK_H_
