// What vector_math.h is built from: bit operations, selection and rounding.  vector_math.h explains the rules.

#ifndef ONNXFUSE_VECTOR_MATH_CORE_H_
#define ONNXFUSE_VECTOR_MATH_CORE_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#ifndef ONNXFUSE_ISA
#define ONNXFUSE_ISA baseline
#endif

#define ONNXFUSE_INLINE static inline __attribute__((always_inline))

namespace onnxfuse {
namespace ONNXFUSE_ISA {
namespace math {

// ---------------------------------------------------------------------------------------------- building blocks

// A register full of floats.
#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
typedef float FloatVector __attribute__((vector_size(kVectorBytes)));
typedef int32_t IntVector __attribute__((vector_size(kVectorBytes)));
typedef uint32_t BitsVector __attribute__((vector_size(kVectorBytes)));

// Several vectors (vector_pack.h).
template <class V, int N> struct Pack;

// The functions of `F` below are written once for float, FloatVector and packs of it.
template <typename F> constexpr bool is_float_or_vector = std::is_same_v<F, float> || std::is_same_v<F, FloatVector>;
template <int N> constexpr bool is_float_or_vector<Pack<FloatVector, N>> = true;
template <typename F> using if_float = std::enable_if_t<is_float_or_vector<F>, int>;

ONNXFUSE_INLINE uint32_t to_bits(float x) {
  uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  return u;
}

ONNXFUSE_INLINE uint64_t to_bits(double x) {
  uint64_t u;
  std::memcpy(&u, &x, sizeof u);
  return u;
}

ONNXFUSE_INLINE float from_bits(uint32_t u) {
  float x;
  std::memcpy(&x, &u, sizeof x);
  return x;
}

ONNXFUSE_INLINE double from_bits(uint64_t u) {
  double x;
  std::memcpy(&x, &u, sizeof x);
  return x;
}

ONNXFUSE_INLINE BitsVector to_bits(FloatVector x) { return (BitsVector)x; }
ONNXFUSE_INLINE FloatVector from_bits(BitsVector u) { return (FloatVector)u; }

ONNXFUSE_INLINE float to_float(uint32_t u) { return static_cast<float>(static_cast<int32_t>(u)); }
ONNXFUSE_INLINE FloatVector to_float(BitsVector u) { return __builtin_convertvector((IntVector)u, FloatVector); }

// The constant in every lane.
template <typename F>
ONNXFUSE_INLINE F splat(float c) {
  return c - F{};  // c - 0 is c for every c, -0 included
}

// `a` where the comparison holds, else `b`.
template <typename Mask, typename F>
ONNXFUSE_INLINE F select(Mask mask, F a, F b) {
  return mask ? a : b;
}

// a * b + c, with one rounding where the instruction set has it.
#if defined(__FMA__) || defined(__AVX512F__) || defined(__aarch64__)
constexpr bool kFusedMultiplyAdd = true;
ONNXFUSE_INLINE float madd(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
ONNXFUSE_INLINE double madd(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
constexpr bool kFusedMultiplyAdd = false;
ONNXFUSE_INLINE float madd(float a, float b, float c) { return a * b + c; }
ONNXFUSE_INLINE double madd(double a, double b, double c) { return a * b + c; }
#endif

ONNXFUSE_INLINE FloatVector madd(FloatVector a, FloatVector b, FloatVector c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}

// The other operands of a vector may be constants.
ONNXFUSE_INLINE FloatVector madd(FloatVector a, float b, FloatVector c) { return madd(a, splat<FloatVector>(b), c); }
ONNXFUSE_INLINE FloatVector madd(FloatVector a, FloatVector b, float c) { return madd(a, b, splat<FloatVector>(c)); }
ONNXFUSE_INLINE FloatVector madd(FloatVector a, float b, float c) { return madd(a, splat<FloatVector>(b), splat<FloatVector>(c)); }

// The sum of two floats, of which the second is what is left beside the first.
template <typename F>
struct DoubleFloat {
  F high;
  F low;
};

// a * b exactly, if nothing overflows or is denormal (Dekker 1971; Veltkamp's splitting where there is no fused
// multiply-add).
template <typename F>
ONNXFUSE_INLINE DoubleFloat<F> product(F a, F b) {
  const F high = a * b;
#if defined(__FMA__) || defined(__AVX512F__) || defined(__aarch64__)
  return {high, madd(a, b, -high)};
#else
  const F shifted_a = a * 4097.0f;
  const F shifted_b = b * 4097.0f;
  const F a1 = shifted_a - (shifted_a - a);
  const F b1 = shifted_b - (shifted_b - b);
  const F a2 = a - a1;
  const F b2 = b - b1;
  return {high, ((a1 * b1 - high) + a1 * b2 + a2 * b1) + a2 * b2};
#endif
}

// c0 + c1 x + c2 x^2 + ... by Horner's rule.
template <typename T, typename C>
ONNXFUSE_INLINE T poly(T, C c0) {
  return c0 - T{};
}

template <typename T, typename C, typename... Rest>
ONNXFUSE_INLINE T poly(T x, C c0, Rest... rest) {
  return madd(poly(x, rest...), x, c0);
}

template <typename F, if_float<F> = 0>
ONNXFUSE_INLINE F absolute(F x) {
  return from_bits(to_bits(x) & 0x7fffffffu);
}
ONNXFUSE_INLINE double absolute(double x) { return from_bits(to_bits(x) & 0x7fffffffffffffffu); }

template <typename F, if_float<F> = 0>
ONNXFUSE_INLINE F minus_absolute(F x) {
  return from_bits(to_bits(x) | 0x80000000u);
}

template <typename F, if_float<F> = 0>
ONNXFUSE_INLINE F with_sign_of(F magnitude, F sign) {
  return from_bits((to_bits(magnitude) & 0x7fffffffu) | (to_bits(sign) & 0x80000000u));
}

ONNXFUSE_INLINE double with_sign_of(double magnitude, double sign) {
  return from_bits((to_bits(magnitude) & 0x7fffffffffffffffu) | (to_bits(sign) & 0x8000000000000000u));
}

// These keep a NaN in x.
template <typename T>
ONNXFUSE_INLINE T at_least(T x, T low) {
  return x < low ? low : x;
}

template <typename T>
ONNXFUSE_INLINE T at_most(T x, T high) {
  return x > high ? high : x;
}

// a > b ? a : b and a < b ? a : b in one instruction: `b` if one is NaN or both are zero; on AArch64 NaN if one is, and +0
// is larger than -0.  (GCC 12 warns of the intrinsics of AVX-512 that have no mask.)
ONNXFUSE_INLINE FloatVector larger(FloatVector a, FloatVector b) {
#if defined(__AVX512F__)
  return _mm512_maskz_max_ps(0xffff, a, b);
#elif defined(__AVX__)
  return _mm256_max_ps(a, b);
#elif defined(__SSE2__)
  return _mm_max_ps(a, b);
#elif defined(__aarch64__)
  return vmaxq_f32(a, b);
#else
  return a > b ? a : b;
#endif
}

ONNXFUSE_INLINE FloatVector smaller(FloatVector a, FloatVector b) {
#if defined(__AVX512F__)
  return _mm512_maskz_min_ps(0xffff, a, b);
#elif defined(__AVX__)
  return _mm256_min_ps(a, b);
#elif defined(__SSE2__)
  return _mm_min_ps(a, b);
#elif defined(__aarch64__)
  return vminq_f32(a, b);
#else
  return a < b ? a : b;
#endif
}

ONNXFUSE_INLINE BitsVector smaller(BitsVector a, BitsVector b) {
#if defined(__AVX512F__)
  return (BitsVector)_mm512_maskz_min_epu32(0xffff, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (BitsVector)_mm256_min_epu32((__m256i)a, (__m256i)b);
#elif defined(__aarch64__)
  return vminq_u32(a, b);
#else
  return a < b ? a : b;
#endif
}

ONNXFUSE_INLINE bool all_at_least(BitsVector a, uint32_t low) {
#if defined(__AVX512F__)
  return _mm512_cmplt_epu32_mask((__m512i)a, _mm512_set1_epi32(static_cast<int>(low))) == 0;
#elif defined(__AVX2__)
  const __m256i least = _mm256_set1_epi32(static_cast<int>(low));
  return _mm256_movemask_epi8(_mm256_cmpeq_epi32(_mm256_min_epu32((__m256i)a, least), least)) == -1;
#elif defined(__aarch64__)
  return vminvq_u32(a) >= low;
#else
  for (size_t i = 0; i < sizeof a / sizeof low; ++i) {
    if (a[i] < low) return false;
  }
  return true;
#endif
}

ONNXFUSE_INLINE FloatVector at_least(FloatVector x, float low) { return larger(splat<FloatVector>(low), x); }
ONNXFUSE_INLINE FloatVector at_most(FloatVector x, float high) { return smaller(splat<FloatVector>(high), x); }

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// x f(x) is -Inf * 0 at -Inf, as in the formulas that define the activations; `y` otherwise.
template <typename T>
ONNXFUSE_INLINE T nan_at_minus_inf(T x, T y) {
  return select(x == -kInf, T{} + kNaN, y);
}

// Adding 1.5 * 2^(mantissa bits) rounds to the nearest integer, which then stands in the low bits of the sum.
constexpr float kRound = 0x1.8p23f;
constexpr double kRound64 = 0x1.8p52;

constexpr float kLog2E = 0x1.715476p+0f;
constexpr float kLn2 = 0x1.62e43p-1f;
constexpr double kLog2E64 = 0x1.71547652b82fep+0;
// ln 2 = high + low; n * high is exact for every exponent n.
constexpr float kLn2High = 0x1.62e4p-1f;
constexpr float kLn2Low = 0x1.7f7d1cp-20f;
constexpr double kLn2High64 = 0x1.62e42fee00000p-1;
constexpr double kLn2Low64 = 0x1.a39ef35793c76p-33;

template <typename F, if_float<F> = 0>
ONNXFUSE_INLINE F round_to_integer(F x) {
  return (x + kRound) - kRound;
}
ONNXFUSE_INLINE double round_to_integer(double x) { return (x + kRound64) - kRound64; }

// 2^(n + offset) for an integer -127 < n + offset < 128 (float), -1023 < n + offset < 1024 (double).
template <typename F, if_float<F> = 0>
ONNXFUSE_INLINE F power_of_two(F n, float offset = 0.0f) {
  return from_bits(to_bits(n + (kRound + 127.0f + offset)) << 23);
}

ONNXFUSE_INLINE double power_of_two(double n, double offset = 0.0) {
  return from_bits(to_bits(n + (kRound64 + 1023.0 + offset)) << 52);
}

}  // namespace math
}  // namespace ONNXFUSE_ISA
}  // namespace onnxfuse

#endif  // ONNXFUSE_VECTOR_MATH_CORE_H_
