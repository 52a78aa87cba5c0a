// What vector_math.h is built from: bit operations, rounding, exp, expm1 and log.  vector_math.h explains the rules.
//
// Range reductions follow Cody & Waite, "Software Manual for the Elementary Functions", 1980, and Muller, "Elementary
// Functions", 3rd ed., 2016, chapter 11.

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

// a * b = high + low exactly, if nothing overflows or is denormal (Dekker 1971; Veltkamp's splitting where there is no
// fused multiply-add).
template <typename F>
struct Product {
  F high;
  F low;
};

template <typename F>
ONNXFUSE_INLINE Product<F> product(F a, F b) {
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

// ---------------------------------------------------------------------------------------------- exp, expm1

// x - n ln 2, for n = the integer nearest to x / ln 2.
template <typename F, if_float<F> = 0>
ONNXFUSE_INLINE F exp_residue(F x, F n) {
  return madd(n, -kLn2Low, madd(n, -kLn2High, x));
}
ONNXFUSE_INLINE double exp_residue(double x, double n) { return madd(n, -kLn2Low64, madd(n, -kLn2High64, x)); }

// The integer nearest to x / ln 2.
template <typename F, if_float<F> = 0>
ONNXFUSE_INLINE F over_ln2(F x) {
  return madd(x, kLog2E, kRound) - kRound;
}

// e^r - 1 for |r| <= ln(2)/2: r + r^2 q(r).  Remez, weight 1/r: q of degree 4, error 1.4e-8.
template <typename F, if_float<F> = 0>
ONNXFUSE_INLINE F expm1_residue(F r) {
  const F q = poly(r, 0.5f, 0.166665435f, 0.0416662805f, 0.00836658385f, 0.00139464496f);
  return madd(r * r, q, r);
}

// (e^(2 h) - 1) / h for |h| <= ln(2)/4, from the same polynomial.
template <typename F, if_float<F> = 0>
ONNXFUSE_INLINE F expm1_of_double_over(F h) {
  return poly(h, 2.0f, 4 * 0.5f, 8 * 0.166665435f, 16 * 0.0416662805f, 32 * 0.00836658385f, 64 * 0.00139464496f);
}

// The same in double: q of degree 10, error 2.7e-19.
ONNXFUSE_INLINE double expm1_residue(double r) {
  const double q = poly(r, 0.5, 0.16666666666666677, 0.041666666666666699, 0.0083333333333216152,
                        0.0013888888888866839, 0.00019841269886158768, 2.4801587360547984e-05,
                        2.7557244181682864e-06, 2.7557242769561145e-07, 2.5109044976071056e-08,
                        2.0924439650133863e-09);
  return madd(r * r, q, r);
}

// p 2^n with one rounding, for an integer -254 < n < 256 (float), -2046 < n < 2048 (double): in two steps, because 2^n
// itself may be denormal or overflow.  The low bits of `bits` are those of n and of both exponents' offsets; what stands
// above them is even, and shifted out.
template <typename F, if_float<F> = 0>
ONNXFUSE_INLINE F scale(F p, F n) {
  const auto bits = to_bits(n + (kRound + 2 * 127.0f));
  const auto half = bits >> 1;
  return p * from_bits(half << 23) * from_bits((bits - half) << 23);
}

ONNXFUSE_INLINE double scale(double p, double n) {
  const uint64_t bits = to_bits(n + (kRound64 + 2 * 1023.0));
  const uint64_t half = bits >> 1;
  return p * from_bits(half << 52) * from_bits((bits - half) << 52);
}

#if defined(__AVX512F__)
ONNXFUSE_INLINE FloatVector scale(FloatVector p, FloatVector n) { return _mm512_maskz_scalef_ps(0xffff, p, n); }
#endif

// mantissa 2^exponent, the exponent rounded down.  What is multiplied with it goes inside `scale`: one rounding, also to
// denormals.
template <typename F>
struct Power {
  F mantissa;
  F exponent;

  F value() const { return scale(mantissa, exponent); }
};

#if defined(__AVX512F__)
// 2^(j/16), which one instruction looks up for all lanes.
alignas(64) constexpr float kPowersOfTwo[16] = {
    0x1p+0f,        0x1.0b5586p+0f, 0x1.172b84p+0f, 0x1.2387a6p+0f, 0x1.306fep+0f,  0x1.3dea64p+0f,
    0x1.4bfdaep+0f, 0x1.5ab07ep+0f, 0x1.6a09e6p+0f, 0x1.7a1148p+0f, 0x1.8ace54p+0f, 0x1.9c4918p+0f,
    0x1.ae89fap+0f, 0x1.c199bep+0f, 0x1.d5818ep+0f, 0x1.ea4afap+0f};

// Added to a number, it leaves the nearest multiple of 1/16 in the low bits.
constexpr float kRoundToSixteenths = kRound / 16;

// e^(x + rest) = 2^n e^r for a multiple n of 1/16, |r| <= ln(2)/32 for -112 <= x <= 89: the polynomial is two terms shorter
// than without a table.  The low bits of `shifted` are those of 16 n, of which the instructions take what they need: four for
// the table, and n rounded down.
template <typename... Rest>
ONNXFUSE_INLINE Power<FloatVector> exp_power(FloatVector x, Rest... rest) {
  const FloatVector shifted = madd(x, kLog2E, kRoundToSixteenths);
  const FloatVector n = shifted - kRoundToSixteenths;
  const FloatVector r = (exp_residue(x, n) + ... + rest);
  const FloatVector t = _mm512_maskz_permutexvar_ps(0xffff, (__m512i)shifted, _mm512_load_ps(kPowersOfTwo));
  const FloatVector p = madd(r * r, madd(r, 0x1.555556p-3f, 0.5f), r);
  return {madd(t, p, t), n};
}
#endif

template <typename F, typename... Rest>
ONNXFUSE_INLINE Power<F> exp_power(F x, Rest... rest) {
  const F n = over_ln2(x);
  return {1.0f + expm1_residue((exp_residue(x, n) + ... + rest)), n};
}

// e^x for -104 <= x <= 89, and for NaN.
template <typename F, if_float<F> = 0>
ONNXFUSE_INLINE F exp_in_range(F x) {
  return exp_power(x).value();
}

// The same for all x <= 89.
template <typename F, if_float<F> = 0>
ONNXFUSE_INLINE F exp_up_to_89(F x) {
  return exp_in_range(at_least(x, -104.0f));
}

#if defined(__AVX512F__)
// Below, zeros are not computed but left out: Intel's processors take some hundred cycles for a result that underflows.
ONNXFUSE_INLINE FloatVector exp_up_to_89(FloatVector x) {
  const Power<FloatVector> power = exp_power(x);
  const __mmask16 other = _mm512_cmp_ps_mask(x, splat<FloatVector>(-104.0f), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_ps(other, power.mantissa, power.exponent);
}
#endif

template <typename F, if_float<F> = 0>
ONNXFUSE_INLINE F exp(F x) {
  return exp_up_to_89(at_most(x, 89.0f));
}

ONNXFUSE_INLINE double exp(double x) {
  x = at_most(at_least(x, -746.0), 710.0);
  const double n = round_to_integer(x * kLog2E64);
  return scale(1.0 + expm1_residue(exp_residue(x, n)), n);
}

// 2^n (e^r - 1) + (2^n - 1), through 2^(n-1) because 2^128 is no float.  A tiny x is its own result, -0 too.
template <typename F, if_float<F> = 0>
ONNXFUSE_INLINE F expm1(F x) {
  const F c = at_most(at_least(x, -18.0f), 89.0f);
  const F n = over_ln2(c);
  const F s = power_of_two(n, -1.0f);
  const F y = 2.0f * madd(s, expm1_residue(exp_residue(c, n)), s - 0.5f);
  return select(absolute(x) < 0x1p-25f, x, y);
}

ONNXFUSE_INLINE double expm1(double x) {
  const double c = at_most(at_least(x, -40.0), 710.0);
  const double n = round_to_integer(c * kLog2E64);
  const double s = power_of_two(n, -1.0);
  const double y = 2.0 * madd(s, expm1_residue(exp_residue(c, n)), s - 0.5);
  return absolute(x) < 0x1p-54 ? x : y;
}

// e^x for x <= 0 as 2^n (1 + residue), to be multiplied and scaled as Power.
template <typename F>
struct Decay {
  F residue;
  F n;

  F value() const { return scale(1.0f + residue, n); }
};

template <typename F>
ONNXFUSE_INLINE Decay<F> decay(F x) {
  const F n = over_ln2(x);
  return {expm1_residue(exp_residue(x, n)), n};
}

// ---------------------------------------------------------------------------------------------- log

// log(1 + f) - f for sqrt(1/2) <= 1 + f < sqrt(2): f^2 (f p(f) - 1/2).  Remez, weight f^2: p of degree 7, error 5.9e-9.
template <typename F, if_float<F> = 0>
ONNXFUSE_INLINE F log1p_residue(F f) {
  const F p = poly(f, 0.333333164f, -0.250008106f, 0.200022861f, -0.166245535f, 0.141811922f, -0.131287545f,
                       0.128816515f, -0.0785961822f);
  return f * f * madd(p, f, -0.5f);
}

// The same in double with s = f / (2 + f), z = s^2: log(1 + f) = f - (f^2/2 - s (f^2/2 + z p(z))).
// Remez, weight z/2: p of degree 6, error 2.4e-18.
ONNXFUSE_INLINE double log1p_residue(double f) {
  const double s = f / (2.0 + f);
  const double z = s * s;
  const double p = poly(z, 0.66666666666666663, 0.39999999999799424, 0.2857142866823148, 0.22222205235509376,
                        0.18183258468383862, 0.15321017319288721, 0.14733461115746224);
  const double h = 0.5 * f * f;
  return s * madd(z, p, h) - h;
}

// x = 2^e (1 + f), sqrt(1/2) <= 1 + f < sqrt(2); log x = e ln 2 + log(1 + f).
template <typename F, if_float<F> = 0>
ONNXFUSE_INLINE F log(F x) {
  const auto denormal = x < 0x1p-126f;
  const auto u = to_bits(select(denormal, x * 0x1p24f, x)) + (0x3f800000u - 0x3f3504f3u);
  const F e = to_float(u >> 23) - select(denormal, splat<F>(151.0f), splat<F>(127.0f));
  const F f = from_bits((u & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
  const F y = madd(e, kLn2High, f + madd(e, kLn2Low, log1p_residue(f)));
  const F below = select(x == 0.0f, splat<F>(-kInf), splat<F>(kNaN));
  return select(x < kInf, select(x > 0.0f, y, below), x);
}

ONNXFUSE_INLINE double log(double x) {
  const bool denormal = x < 0x1p-1022;
  const uint64_t u = to_bits(denormal ? x * 0x1p54 : x) + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu);
  const double e = from_bits((u >> 52) | to_bits(0x1p52)) - (denormal ? 0x1p52 + 1077.0 : 0x1p52 + 1023.0);
  const double f = from_bits((u & 0xfffffffffffffu) + 0x3fe6a09e667f3bcdu) - 1.0;
  double y = madd(e, kLn2High64, f + madd(e, kLn2Low64, log1p_residue(f)));
  y = x > 0.0 ? y : (x == 0.0 ? -double(kInf) : double(kNaN));
  return x < double(kInf) ? y : x;
}

}  // namespace math
}  // namespace ONNXFUSE_ISA
}  // namespace onnxfuse

#endif  // ONNXFUSE_VECTOR_MATH_CORE_H_
