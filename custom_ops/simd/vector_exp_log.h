// exp, expm1 and log.  vector_math.h explains the rules.
//
// Range reductions follow Cody & Waite, "Software Manual for the Elementary Functions", 1980, and Muller, "Elementary
// Functions", 3rd ed., 2016, chapter 11.

#ifndef ONNXFUSE_VECTOR_EXP_LOG_H_
#define ONNXFUSE_VECTOR_EXP_LOG_H_

#include "simd/vector_math_core.h"
#include "simd/vector_pack.h"

namespace onnxfuse {
namespace ONNXFUSE_ISA {
namespace math {

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

// 2^(j/32) / c0.  Of the c0 for which e^0 is 1 and p below is less than 1, where floats are closer, one for which all of these are
// nearly floats: they are off by 2.8e-8 at most.
alignas(64) constexpr float kMorePowersOfTwo[32] = {
    0x1.04eb5p+0f,  0x1.0aa1fp+0f,  0x1.107898p+0f, 0x1.166ffap+0f, 0x1.1c88cep+0f, 0x1.22c3dp+0f,  0x1.2921bep+0f,
    0x1.2fa35ep+0f, 0x1.364976p+0f, 0x1.3d14d4p+0f, 0x1.440648p+0f, 0x1.4b1ea8p+0f, 0x1.525ecep+0f, 0x1.59c798p+0f,
    0x1.6159ecp+0f, 0x1.6916b2p+0f, 0x1.70fed6p+0f, 0x1.79134ep+0f, 0x1.81551p+0f,  0x1.89c51cp+0f, 0x1.926474p+0f,
    0x1.9b3422p+0f, 0x1.a43534p+0f, 0x1.ad68cp+0f,  0x1.b6cfep+0f,  0x1.c06bb6p+0f, 0x1.ca3d6ap+0f, 0x1.d44628p+0f,
    0x1.de8724p+0f, 0x1.e9019cp+0f, 0x1.f3b6d2p+0f, 0x1.fea80ep+0f};
constexpr float kRoundTo32nds = kRound / 32;

// 1 + e^-(x + rest) for x <= 104: infinite below -88.712, where 2^n is, but NaN of -Inf.  The table is twice as long as that of
// exp_power and the polynomial one term shorter: cheaper, and with twice the error, for which e^x and GELU have no room.
// c0 e^r for |r| <= ln(2)/64: Remez, weight e^-r: p of degree 2, with that c0, error 5.4e-8.
template <typename... Rest>
ONNXFUSE_INLINE FloatVector one_plus_exp_of_minus(FloatVector x, Rest... rest) {
  const FloatVector shifted = madd(x, -kLog2E, kRoundTo32nds);
  const FloatVector n = shifted - kRoundTo32nds;
  const FloatVector minus_r = (madd(n, kLn2Low, madd(n, kLn2High, x)) + ... + rest);
  const FloatVector t = _mm512_maskz_permutex2var_ps(0xffff, _mm512_load_ps(kMorePowersOfTwo), (__m512i)shifted,
                                                     _mm512_load_ps(kMorePowersOfTwo + 16));
  const FloatVector p = poly(minus_r, 0x1.f658dcp-1f, -0x1.f65acp-1f, 0x1.f65a34p-2f);
  return madd(scale(t, n), p, 1.0f);
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

#endif  // ONNXFUSE_VECTOR_EXP_LOG_H_
