// Elementary functions and activations as branch-free code: those on `F` for a float or a FloatVector, the others as
// scalar code that GCC and Clang vectorize in a plain loop.
//
// The header is compiled once for each instruction set; ONNXFUSE_ISA names the namespace so that the copies stay apart.
// It relies on -fno-math-errno -fno-trapping-math -ffp-contract=off and on nothing else: NaN, infinities, signed zeros
// and denormals are handled.  `math::f(float)` is within 4 ulp everywhere; custom_ops/tests/vector_math_test.cc
// measures it.  `math::f(double)` is vectorized for exp, expm1, log, sigmoid and tanh; the others call the C library.
//
// Float functions that a model spends its time in are computed in float.  The others are computed in double and
// rounded once, which is simpler and accurate.
//
// The polynomials are minimax fits made for this file by Remez exchange in 45 digits, then rounded.  "Weight" is what
// the polynomial's error is multiplied by to give the error that was minimized, and "error" is the greatest of that, a
// relative error of the function, before rounding.  One float ulp is 6e-8 to 1.2e-7.

#ifndef ONNXFUSE_VECTOR_MATH_H_
#define ONNXFUSE_VECTOR_MATH_H_

#include "simd/vector_exp_log.h"
#include "simd/vector_math_core.h"
#include "simd/vector_pack.h"
#include "simd/vector_trigonometry.h"

namespace onnxfuse {
namespace ONNXFUSE_ISA {
namespace math {

// ---------------------------------------------------------------------------------------------- tanh, sigmoid, erf

// With m = expm1(2 x): m / (2 + m), one formula without cancellation for every x.  Computed as (m/2) / (1 + m/2) from half
// of the residue h: m/2 = s (e^(2 h) - 1) + s - 1/2 with s = 2^(n-1).  The reduction takes one step: its error is relative to
// m + 1 and grows with |n|, as what it adds to the quotient shrinks.  A zero's sign is lost on the way.
template <typename F, if_float<F> = 0>
ONNXFUSE_INLINE F tanh(F x) {
  constexpr float bias = kRound + 126.0f;  // leaves the exponent of 2^(n-1) in the low bits
  const F c = at_most(at_least(x, -10.0f), 10.0f);
  const F shifted = madd(c, 2.0f * kLog2E, bias);
  const F n = shifted - bias;
  const F h = madd(n, -0.5f * kLn2, c);
  const F s = from_bits(to_bits(shifted) << 23);
  const F half_m = madd(s * h, expm1_of_double_over(h), s - 0.5f);
  return from_bits(to_bits(half_m / (1.0f + half_m)) | (to_bits(x) & 0x80000000u));
}

ONNXFUSE_INLINE double tanh(double x) {
  const double m = expm1(-2.0 * absolute(x));
  return with_sign_of(m / (2.0 + m), x);
}

// Below, sigmoid is 0, where it would be denormal: what it gates would be, and slow down all that reads it.
constexpr float kSigmoidLeast = -87.33654f;

// With w = 2^-24 e^-x: 2^-24 / (2^-24 + w).
template <typename F, if_float<F> = 0>
ONNXFUSE_INLINE F sigmoid(F x) {
  constexpr float bias = kRound + 127.0f - 24.0f;  // leaves the exponent of 2^(n-24) in the low bits
  const F c = at_most(at_least(x, kSigmoidLeast), 60.0f);
  const F shifted = madd(c, -kLog2E, bias);
  const F n = shifted - bias;
  const F s = from_bits(to_bits(shifted) << 23);
  const F w = madd(s, expm1_residue(-madd(n, kLn2Low, madd(n, kLn2High, c))), s);
  return select(x < kSigmoidLeast, F{}, 0x1p-24f / (0x1p-24f + w));
}

#if defined(__AVX512F__)
// What x and 1 are divided by; e^-x is nothing beside 1 from 17.4 on.
ONNXFUSE_INLINE FloatVector sigmoid_divisor(FloatVector x) { return one_plus_exp_of_minus(at_most(x, 20.0f)); }

ONNXFUSE_INLINE FloatVector sigmoid(FloatVector x) {
  const __mmask16 other = _mm512_cmp_ps_mask(x, splat<FloatVector>(kSigmoidLeast), _CMP_NLT_UQ);
  return _mm512_maskz_div_ps(other, splat<FloatVector>(1.0f), sigmoid_divisor(x));
}
#endif

ONNXFUSE_INLINE double sigmoid(double x) {
  const double z = exp(-absolute(x));
  return (x < 0.0 ? z : 1.0) / (1.0 + z);
}

// x sigmoid(x).
template <typename F> ONNXFUSE_INLINE F silu(F x) { return x * sigmoid(x); }

#if defined(__AVX512F__)
// One operation less, and nothing to cut off: -88 over the greatest finite divisor is not denormal, and NaN comes of -Inf as in
// the formula.
ONNXFUSE_INLINE FloatVector silu(FloatVector x) { return x / sigmoid_divisor(x); }
#endif

// |x| < 0.9: x p(x^2).  Remez, p of degree 5, error 1.2e-8.
// Above: 1 - 2^g(|x|), g = log2(erfc).  Remez, weight erfc/erf: g of degree 6, error 1.7e-9 for 0.9 <= |x| <= 4, beyond
// which erf rounds to 1.  2^f for |f| <= 1/2: Remez, degree 5, error 7.5e-8, of which erfc(0.9) = 0.2 is left.
template <typename F, if_float<F> = 0>
ONNXFUSE_INLINE F erf(F x) {
  const F z = x * x;
  const F small = x * poly(z, 1.12837911f, -0.376125246f, 0.112821408f, -0.0267789084f, 0.00501196273f,
                               -0.000609035953f);
  const F a = at_most(absolute(x), 4.0f);
  const F g = poly(a, -0.000240134439f, -1.62706745f, -0.91896224f, -0.150204271f, 0.0321940407f, -0.00442256546f,
                       0.000285970251f);
  const F n = round_to_integer(g);
  const F p = poly(g - n, 1.00000012f, 0.693146944f, 0.240221202f, 0.0555071309f, 0.00967554096f, 0.00132764794f);
  return select(a < 0.9f, small, with_sign_of(madd(-p, power_of_two(n), 1.0f), x));
}

static inline double erf(double x) { return std::erf(x); }

// ---------------------------------------------------------------------------------------------- activations

// max(x, 0) + log1p(e^-|x|); log1p takes its argument z <= 1 to log1p_residue's range.
template <typename F, if_float<F> = 0>
ONNXFUSE_INLINE F softplus(F x) {
  const F z = exp_up_to_89(minus_absolute(x));
  const auto high = z > 0.41421356f;
  const F f = select(high, madd(z, 0.5f, -0.5f), z);
  const F e = select(high, splat<F>(1.0f), F{});
  const F y = madd(e, kLn2High, f + madd(e, kLn2Low, log1p_residue(f)));
  return y + select(x > 0.0f, x, F{});
}

static inline double softplus(double x) { return (x > 0.0 ? x : 0.0) + std::log1p(std::exp(-std::fabs(x))); }

// x tanh(softplus(x)).  With z = e^-|x|, tanh(softplus(x)) is
//   for x >= 0:  1 - 2 z^2 / ((z + 1)^2 + z^2)
//   for x < 0:   z (1 - z (z + 1) / ((z + 1)^2 + 1))
// and the differences are above 0.6.
template <typename F, if_float<F> = 0>
ONNXFUSE_INLINE F mish(F x) {
  const F c = at_least(x, -110.0f);
  const Decay<F> d = decay(at_least(-absolute(c), -110.0f));
  const auto negative = x < 0.0f;
  const F z = d.value();
  const F z1 = z + 1.0f;
  const F q = z * select(negative, z1, 2.0f * z) / madd(z1, z1, select(negative, splat<F>(1.0f), z * z));
  const F factor = select(negative, scale(madd(c, d.residue, c), d.n), c);
  return nan_at_minus_inf(x, factor * (1.0f - q));
}

static inline double mish(double x) {
  const long double z = __builtin_expl(-__builtin_fabsl(static_cast<long double>(x)));
  const long double top = x < 0.0 ? z * (z + 2.0L) : 1.0L + 2.0L * z;
  return static_cast<double>(x * (top / (top + (x < 0.0 ? 2.0L : 2.0L * z * z))));
}

// x Phi(x), Phi the normal distribution function.
// |x| < 0.7: x (1/2 + x p(x^2)).  Remez, weight x/Phi(-x): p of degree 4, error 7.3e-10.
// Above, with a = |x|: max(x, 0) - e^(-a^2/2) H(t), where H = a e^(a^2/2) Phi(-a) is nearly a polynomial in
// t = (a - 3) / (a + 3), the map of Shepherd & Laframboise, Math. Comp. 36 (1981).  Remez, degree 8, error 8.2e-9 for
// 0.7 <= a <= 14.5, beyond which the second term rounds to 0.  a^2 is formed from a's upper 12 bits and the rest,
// because an error in the exponent is a relative error of the result.
template <typename F, if_float<F> = 0>
ONNXFUSE_INLINE F gelu(F x) {
  const F a = at_most(absolute(x), 14.5f);
  const F z = a * a;
  const F p = poly(z, 0.398942292f, -0.0664903149f, 0.00997257978f, -0.00118211738f, 0.000103874954f);
  const F small = x * madd(x, p, 0.5f);

  const F upper = from_bits(to_bits(a) & 0xfffff000u);
  const F square = -0.5f * upper * upper;
  const F rest = -0.5f * (a - upper) * (a + upper);
  const F n = over_ln2(square + rest);
  const F residue = expm1_residue(exp_residue(square, n) + rest);
  const F t = (a - 3.0f) / (a + 3.0f);
  const F h = poly(t, 0.364541858f, 0.109875865f, -0.139657453f, 0.0913767293f, -0.0288569666f, -0.00173827913f,
                       0.00396041712f, -3.83939587e-05f, -0.000540553883f);
  const F large = select(x < 0.0f, splat<F>(-0.0f), x) - scale(madd(h, residue, h), n);
  return nan_at_minus_inf(x, select(a < 0.7f, small, large));
}

#if defined(__AVX512F__)
// The same for all x and without a division: H by a polynomial in a - b on each of 16 intervals that begin at b, quarters
// of the octaves of 1 + a, which two bits of its exponent and two of its fraction number.  One instruction looks a
// coefficient up for all lanes.  Remez, weight 1/H, degree 5, error 8.4e-8 for a < 1/4 and at most 3.3e-8 above.
alignas(64) constexpr float kGeluBegins[16] = {
    1.0f, 1.5f, 2.0f, 2.5f, 3.0f, 4.0f, 5.0f, 6.0f, 7.0f, 9.0f, 11.0f, 13.0f, 0.0f, 0.25f, 0.5f, 0.75f};
alignas(64) constexpr float kGeluH[6][16] = {
    {0.261578292f, 0.308670998f, 0.336203992f, 0.353328317f, 0.364541858f, 0.377642572f, 0.384596527f, 0.388675898f,
     0.391254395f, 0.39418909f, 0.39572379f, 0.39662239f, 0.0f, 0.103508025f, 0.174809411f, 0.225174353f},
    {0.12421298f, 0.0703732744f, 0.0426252671f, 0.0272963792f, 0.018311929f, 0.00921161193f, 0.00519047957f,
     0.00318093202f, 0.00207803585f, 0.00102013978f, 0.000571443292f, 0.000350818475f, 0.49999997f, 0.340173244f,
     0.23755224f, 0.169906422f},
    {-0.0752244368f, -0.0374795869f, -0.0201085228f, -0.011491634f, -0.00692276517f, -0.00287411222f, -0.00136886165f,
     -0.000723363424f, -0.000413589849f, -0.000162297831f, -7.54864886e-05f, -3.95646457e-05f, -0.398934036f,
     -0.252898127f, -0.164736554f, -0.110048391f},
    {0.0367302932f, 0.0163400937f, 0.00786603987f, 0.00405495195f, 0.00218552584f, 0.00076187728f, 0.00031030862f,
     0.000142537479f, 7.05527564e-05f, 2.24241667e-05f, 8.72518831e-06f, 3.93379878e-06f, 0.249736458f, 0.148747355f,
     0.0911726579f, 0.0573588721f},
    {-0.0146277603f, -0.00591738382f, -0.0025973497f, -0.0012246886f, -0.000559331442f, -0.000168755039f,
     -6.01385291e-05f, -2.44308703e-05f, -9.81213543e-06f, -2.61530317e-06f, -8.71744817e-07f, -3.51204562e-07f,
     -0.129984334f, -0.0728184134f, -0.0423181057f, -0.0252631456f},
    {0.00368885929f, 0.00139472587f, 0.00057289697f, 0.000253120787f, 8.53616293e-05f, 2.33376159e-05f,
     7.57297812e-06f, 2.81603639e-06f, 7.99456245e-07f, 1.89036911e-07f, 5.65114853e-08f, 2.25158487e-08f,
     0.0481703877f, 0.0250693988f, 0.0139652379f, 0.00800473522f},
};

ONNXFUSE_INLINE FloatVector gelu(FloatVector x) {
  const FloatVector a = at_most(absolute(x), 14.5f);
  const DoubleFloat<FloatVector> square = product(-0.5f * a, a);
  const Power<FloatVector> z = exp_power(square.high, square.low);
  const auto interval = (__m512i)(to_bits(a + 1.0f) >> 21);
  const auto of_interval = [&](const float* table) {
    return (FloatVector)_mm512_maskz_permutexvar_ps(0xffff, interval, _mm512_load_ps(table));
  };
  const FloatVector d = a - of_interval(kGeluBegins);
  FloatVector h = of_interval(kGeluH[5]);
#pragma GCC unroll 5
  for (int i = 4; i >= 0; --i) h = madd(h, d, of_interval(kGeluH[i]));
  const FloatVector tail = scale(h * z.mantissa, z.exponent);
  return nan_at_minus_inf(x, select(x < 0.0f, splat<FloatVector>(-0.0f), x) - tail);
}
#endif

// In long double, because an error in the argument of erfc or exp is a relative error of the result.
static inline double gelu(double x) {
  return static_cast<double>(x * (0.5L * __builtin_erfcl(-0.70710678118654752440084436210485L * x)));
}

// 0.5 x (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2/pi) (x + 0.044715 x^3) (Hendrycks & Gimpel, 2016).
// An error in 2 u is a relative error of the result for negative x, so 2 u = x (k1 + k3 x^2) is formed as a
// DoubleFloat, with the error-free sums and products of Dekker, Numer. Math. 18 (1971).
constexpr long double kGelu1 = 1.5957691216057307117597842397375L;
constexpr long double kGelu3 = 0.071354816272600253536368152380062L;

// 2 u of |x| <= 11.
template <typename F, if_float<F> = 0>
ONNXFUSE_INLINE DoubleFloat<F> gelu_tanh_argument(F x) {
  constexpr float k1 = static_cast<float>(kGelu1);
  constexpr float k3 = static_cast<float>(kGelu3);
  constexpr float k1_rest = static_cast<float>(kGelu1 - static_cast<long double>(k1));
  constexpr float k3_rest = static_cast<float>(kGelu3 - static_cast<long double>(k3));
  const DoubleFloat<F> square = product(x, x);
  const DoubleFloat<F> cube = product(square.high, splat<F>(k3));
  const F sum = cube.high + k1;
  const F from_cube = sum - k1;
  const F lost = (cube.high - from_cube) + (k1 - (sum - from_cube));
  const F rest = lost + (cube.low + madd(square.low, k3, madd(square.high, k3_rest, k1_rest)));
  const DoubleFloat<F> u = product(x, sum);
  return {u.high, madd(x, rest, u.low)};
}

template <typename F, if_float<F> = 0>
ONNXFUSE_INLINE F gelu_tanh(F x) {
  const F c = at_most(at_least(x, -11.0f), 11.0f);
  const DoubleFloat<F> u = gelu_tanh_argument(c);
  const Power<F> z = exp_power(at_most(at_least(u.high, -112.0f), 20.0f), u.low);
  const F y = scale(c * z.mantissa, z.exponent) / (1.0f + z.value());
  return nan_at_minus_inf(x, select(x > 11.0f, x, y));
}

#if defined(__AVX512F__)
// e^(-2 u) is nothing beside 1 from x = 5.1 on, and at -11 infinite.
ONNXFUSE_INLINE FloatVector gelu_tanh(FloatVector x) {
  const DoubleFloat<FloatVector> u = gelu_tanh_argument(at_most(at_least(x, -11.0f), 5.2f));
  return x / one_plus_exp_of_minus(u.high, u.low);
}
#endif

static inline double gelu_tanh(double x) {
  const long double u = x * (kGelu1 + kGelu3 * x * x);
  const long double z = __builtin_expl(-__builtin_fabsl(u));
  return static_cast<double>(x * ((x < 0.0 ? z : 1.0L) / (1.0L + z)));
}

// ---------------------------------------------------------------------------------------------- hyperbolic functions

// With m = expm1(|x|): (m + m / (m + 1)) / 2.  At 100 the result is already an infinite float.
ONNXFUSE_INLINE float sinh(float x) {
  const double m = expm1(double(at_most(absolute(x), 100.0f)));
  return with_sign_of(static_cast<float>(0.5 * (m + m / (m + 1.0))), x);
}

ONNXFUSE_INLINE float cosh(float x) {
  const double e = exp(double(at_most(absolute(x), 100.0f)));
  return static_cast<float>(0.5 * (e + 1.0 / e));
}

// log(a + sqrt(a^2 + 1)); below 2^-7 the first terms of the series, error 3/40 a^4.
ONNXFUSE_INLINE float asinh(float x) {
  const double a = absolute(x);
  const double z = a * a;
  const double series = madd(a * z, -1.0 / 6.0, a);
  const float small = static_cast<float>(series);
  const float large = static_cast<float>(log(a + std::sqrt(z + 1.0)));
  return with_sign_of(absolute(x) < 0x1p-7f ? small : large, x);
}

// log(x + sqrt(x^2 - 1)); x^2 - 1 is exact in double near 1.
ONNXFUSE_INLINE float acosh(float x) {
  const double v = x;
  const double y = log(v + std::sqrt(v * v - 1.0));
  return static_cast<float>(v < 1.0 ? double(kNaN) : y);
}

// log((1 + a) / (1 - a)) / 2; below 2^-7 the first terms of the series, error a^6 / 7.
ONNXFUSE_INLINE float atanh(float x) {
  const double a = absolute(x);
  const double z = a * a;
  const double series = madd(a * z, madd(z, 0.2, 1.0 / 3.0), a);
  const float small = static_cast<float>(series);
  const float large = static_cast<float>(0.5 * log((1.0 + a) / (1.0 - a)));
  return with_sign_of(absolute(x) < 0x1p-7f ? small : large, x);
}

static inline double sinh(double x) { return std::sinh(x); }
static inline double cosh(double x) { return std::cosh(x); }
static inline double asinh(double x) { return std::asinh(x); }
static inline double acosh(double x) { return std::acosh(x); }
static inline double atanh(double x) { return std::atanh(x); }

// ---------------------------------------------------------------------------------------------- pow

// What a negative x brings into x^y as a factor: the sign if y is odd, NaN if y is no integer; but zero and infinity
// have a power of any y.  (C17, F.10.4.4)
ONNXFUSE_INLINE double factor_of_negative(double magnitude, double y) {
  // Every float from 2^24 is an even integer, so that the clamp changes neither property.
  const double clamped = at_most(at_least(y, -0x1p25), 0x1p25);
  const double half = 0.5 * clamped;
  const double of_fraction = magnitude == 0.0 || magnitude == double(kInf) ? 1.0 : double(kNaN);
  const double of_integer = round_to_integer(half) == half ? 1.0 : -1.0;
  return round_to_integer(clamped) == clamped ? of_integer : of_fraction;
}

// e^(y log|x|) in double, with the sign and the special cases of C's powf.
ONNXFUSE_INLINE float pow(float x, float y) {
  const double magnitude = absolute(static_cast<double>(x));
  double result = exp(static_cast<double>(y) * log(magnitude));
  result = magnitude == 1.0 && y == y ? 1.0 : result;
  result *= to_bits(x) >> 31 ? factor_of_negative(magnitude, y) : 1.0;
  return y == 0.0f || x == 1.0f ? 1.0f : static_cast<float>(result);
}

// out[i] = pow(x[i * XStep], y[i * YStep]) in loops short enough for compilers to vectorize.  `out` may be `x` or `y`.
template <size_t XStep, size_t YStep>
ONNXFUSE_INLINE void pow_array(const float* x, const float* y, float* out, size_t n) {
  constexpr size_t kBlock = 64;
  double magnitude[kBlock];
  double factor[kBlock];
  double result[kBlock];
  for (size_t at = 0; at < n; at += kBlock) {
    const size_t count = n - at < kBlock ? n - at : kBlock;
    const float* const base = x + at * XStep;
    const float* const exponent = y + at * YStep;
    for (size_t i = 0; i < count; ++i) magnitude[i] = absolute(static_cast<double>(base[i * XStep]));
    for (size_t i = 0; i < count; ++i) result[i] = log(magnitude[i]);
    for (size_t i = 0; i < count; ++i) result[i] = exp(static_cast<double>(exponent[i * YStep]) * result[i]);
    for (size_t i = 0; i < count; ++i) factor[i] = factor_of_negative(magnitude[i], exponent[i * YStep]);
#pragma GCC ivdep
    for (size_t i = 0; i < count; ++i) {
      const float b = base[i * XStep];
      const float e = exponent[i * YStep];
      const double sign = to_bits(b) >> 31 ? factor[i] : 1.0;
      const double power = magnitude[i] == 1.0 && e == e ? sign : result[i] * sign;
      out[at + i] = e == 0.0f || b == 1.0f ? 1.0f : static_cast<float>(power);
    }
  }
}

static inline double pow(double x, double y) { return std::pow(x, y); }

}  // namespace math
}  // namespace ONNXFUSE_ISA
}  // namespace onnxfuse

#endif  // ONNXFUSE_VECTOR_MATH_H_
