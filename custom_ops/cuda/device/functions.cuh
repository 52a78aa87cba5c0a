// Elementary functions and activations, in float within 4 units in the last place.
//
// NaN, infinities, signed zeros and denormals are handled.  What the CUDA library has is taken from there.  The others
// are those of custom_ops/simd/vector_math.h, where their formulas and polynomials are explained; fmaf is written out
// because contraction is off.

#ifndef ONNXFUSE_FUNCTIONS_CUH_
#define ONNXFUSE_FUNCTIONS_CUH_

namespace onnxfuse {

#define ONNXFUSE_LIBRARY_FUNCTION(name, single, twice)       \
  ONNXFUSE_DEVICE f32 name(f32 x) { return ::single(x); }   \
  ONNXFUSE_DEVICE f64 name(f64 x) { return ::twice(x); }
ONNXFUSE_LIBRARY_FUNCTION(exp, expf, exp)
ONNXFUSE_LIBRARY_FUNCTION(expm1, expm1f, expm1)
ONNXFUSE_LIBRARY_FUNCTION(log, logf, log)
ONNXFUSE_LIBRARY_FUNCTION(log1p, log1pf, log1p)
ONNXFUSE_LIBRARY_FUNCTION(sin, sinf, sin)
ONNXFUSE_LIBRARY_FUNCTION(cos, cosf, cos)
ONNXFUSE_LIBRARY_FUNCTION(tan, tanf, tan)
ONNXFUSE_LIBRARY_FUNCTION(asin, asinf, asin)
ONNXFUSE_LIBRARY_FUNCTION(acos, acosf, acos)
ONNXFUSE_LIBRARY_FUNCTION(atan, atanf, atan)
ONNXFUSE_LIBRARY_FUNCTION(sinh, sinhf, sinh)
ONNXFUSE_LIBRARY_FUNCTION(cosh, coshf, cosh)
ONNXFUSE_LIBRARY_FUNCTION(tanh, tanhf, tanh)
ONNXFUSE_LIBRARY_FUNCTION(asinh, asinhf, asinh)
ONNXFUSE_LIBRARY_FUNCTION(acosh, acoshf, acosh)
ONNXFUSE_LIBRARY_FUNCTION(atanh, atanhf, atanh)
ONNXFUSE_LIBRARY_FUNCTION(erf, erff, erf)
#undef ONNXFUSE_LIBRARY_FUNCTION

// c0 + c1 x + c2 x^2 + …
ONNXFUSE_DEVICE f32 poly(f32, f32 c0) { return c0; }
template <class... Rest> ONNXFUSE_DEVICE f32 poly(f32 x, f32 c0, Rest... rest) {
  return ::fmaf(poly(x, rest...), x, c0);
}

ONNXFUSE_DEVICE f32 infinity() { return __uint_as_float(0x7f800000u); }
ONNXFUSE_DEVICE f32 not_a_number() { return __uint_as_float(0x7fc00000u); }

// a / b for 1 <= b < 2^100, within one unit in the last place: an IEEE division has a branch for the other divisors.
ONNXFUSE_DEVICE f32 quotient(f32 a, f32 b) {
  f32 inverse;
#ifdef __CUDA_ARCH__
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(b));
#else
  inverse = 1.0f / b;
#endif
  const f32 q = a * inverse;
  return ::fmaf(::fmaf(-b, q, a), inverse, q);
}
ONNXFUSE_DEVICE f64 quotient(f64 a, f64 b) { return a / b; }

// ---------------------------------------------------------------------------------------------- pow

// The small powers that models have are plain products, as in ONNX Runtime.
ONNXFUSE_DEVICE f32 pow(f32 a, f32 b) { return b == 2.0f ? a * a : b == 3.0f ? a * a * a : ::powf(a, b); }
ONNXFUSE_DEVICE f64 pow(f64 a, f64 b) { return b == 2.0 ? a * a : b == 3.0 ? a * a * a : ::pow(a, b); }

// Integers go through double.  A power below 2^53 is exact by repeated squaring, which pow() need not be.
template <class T> ONNXFUSE_DEVICE T pow(T a, T b) {
  f64 power = 1.0;
  const bool small = !is_negative(b) && b < T(64);
  if (small) {
    f64 square = static_cast<f64>(a);
    for (u32 rest = static_cast<u32>(b); rest != 0; rest >>= 1) {
      if (rest & 1) power *= square;
      square *= square;
    }
  }
  return float_to_integer<T>(small && ::fabs(power) < 0x1p53 ? power : ::pow(static_cast<f64>(a), static_cast<f64>(b)));
}

// ---------------------------------------------------------------------------------------------- exponentials

// e^x = (1 + residue) 2^n for -152 < x <= 0.  What is multiplied with it goes inside scale(), so that the result is
// rounded once, also to a denormal.
struct Decay {
  f32 residue;
  f32 n;
};

// Adding 1.5 * 2^23 rounds to the nearest integer, which then stands in the low bits of the sum.
constexpr f32 round_bias = 0x1.8p23f;

ONNXFUSE_DEVICE f32 nearest_over_ln2(f32 x) { return ::fmaf(x, 0x1.715476p+0f, round_bias) - round_bias; }

// x - n ln 2; ln 2 in two parts, of which the first times n is exact.
ONNXFUSE_DEVICE f32 exp_residue(f32 x, f32 n) { return ::fmaf(n, -0x1.7f7d1cp-20f, ::fmaf(n, -0x1.62e4p-1f, x)); }

// e^r - 1 for |r| <= ln(2)/2.
ONNXFUSE_DEVICE f32 expm1_residue(f32 r) {
  return ::fmaf(r * r, poly(r, 0.5f, 0.166665435f, 0.0416662805f, 0.00836658385f, 0.00139464496f), r);
}

ONNXFUSE_DEVICE Decay decay(f32 x) {
  const f32 n = nearest_over_ln2(x);
  return {expm1_residue(exp_residue(x, n)), n};
}

// 2^n for an integer -127 < n < 128.
ONNXFUSE_DEVICE f32 power_of_two(f32 n) { return __uint_as_float(__float_as_uint(n + (round_bias + 127.0f)) << 23); }

// x 2^n with one rounding, in two steps because 2^n itself may be denormal.
ONNXFUSE_DEVICE f32 scale(f32 x, f32 n) {
  const f32 half = ::rintf(n * 0.5f);
  return x * power_of_two(half) * power_of_two(n - half);
}

// ---------------------------------------------------------------------------------------------- activations

template <class T> ONNXFUSE_DEVICE T elu(T a, T alpha) {
  const T negative = alpha * expm1(a < T(0) ? a : T(0));
  return a < T(0) ? negative : a;
}

// With z = e^-|x|: 1 / (1 + z) for x >= 0, z / (1 + z) for x < 0.
template <class T> ONNXFUSE_DEVICE T sigmoid(T x) {
  const T z = exp(-abs(x));
  return quotient(x < T(0) ? z : T(1), T(1) + z);
}

template <class T> ONNXFUSE_DEVICE T softplus(T x) { return log1p(exp(-abs(x))) + (x < T(0) ? T(0) : x); }

ONNXFUSE_DEVICE f32 mish(f32 x) {
  const f32 c = ::fmaxf(x, -110.0f);
  const Decay d = decay(::fmaxf(-::fabsf(c), -110.0f));
  const bool negative = x < 0.0f;
  const f32 z = scale(1.0f + d.residue, d.n);
  const f32 z1 = z + 1.0f;
  const f32 q = quotient(z * (negative ? z1 : 2.0f * z), ::fmaf(z1, z1, negative ? 1.0f : z * z));
  const f32 factor = negative ? scale(::fmaf(c, d.residue, c), d.n) : x;
  return x == -infinity() ? not_a_number() : factor * (1.0f - q);
}

ONNXFUSE_DEVICE f64 mish(f64 x) {
  const f64 z = ::exp(-::fabs(x));
  const f64 top = x < 0.0 ? z * (z + 2.0) : 1.0 + 2.0 * z;
  return x * (top / (top + (x < 0.0 ? 2.0 : 2.0 * z * z)));
}

ONNXFUSE_DEVICE f32 gelu(f32 x) {
  const f32 a = ::fminf(::fabsf(x), 14.5f);
  const f32 p = poly(a * a, 0.398942292f, -0.0664903149f, 0.00997257978f, -0.00118211738f, 0.000103874954f);
  const f32 small = x * ::fmaf(x, p, 0.5f);

  const f32 upper = __uint_as_float(__float_as_uint(a) & 0xfffff000u);
  const f32 square = -0.5f * upper * upper;
  const f32 rest = -0.5f * (a - upper) * (a + upper);
  const f32 n = nearest_over_ln2(square + rest);
  const f32 residue = expm1_residue(exp_residue(square, n) + rest);
  const f32 t = quotient(a - 3.0f, a + 3.0f);
  const f32 h = poly(t, 0.364541858f, 0.109875865f, -0.139657453f, 0.0913767293f, -0.0288569666f, -0.00173827913f,
                     0.00396041712f, -3.83939587e-05f, -0.000540553883f);
  const f32 large = (x < 0.0f ? -0.0f : x) - scale(::fmaf(h, residue, h), n);
  return x == -infinity() ? not_a_number() : a < 0.7f ? small : large;
}

ONNXFUSE_DEVICE f64 gelu(f64 x) { return x * (0.5 * ::erfc(-0.70710678118654752 * x)); }

// x sigmoid(2 u), 2 u = x (k1 + k3 x^2) = x t.  An error in the exponent is a relative error of the result, so x^2, t
// and 2 u are each the sum of two floats, the second of which is what rounding took from the first.
ONNXFUSE_DEVICE f32 gelu_tanh(f32 x) {
  constexpr f32 k1 = 0x1.988454p+0f, k1_low = -0x1.857936p-25f;  // 2 sqrt(2 / pi)
  constexpr f32 k3 = 0x1.2444f2p-4f, k3_low = 0x1.49b16ap-29f;    // 0.044715 times that
  const f32 c = ::fminf(::fmaxf(x, -11.0f), 11.0f);
  const f32 square = c * c;
  const f32 square_low = ::fmaf(c, c, -square);
  const f32 q = k3 * square;
  const f32 q_low = ::fmaf(k3, square, -q) + ::fmaf(k3, square_low, k3_low * square);
  const f32 t = k1 + q;
  const f32 seen = t - k1;
  const f32 t_low = ((k1 - (t - seen)) + (q - seen)) + (k1_low + q_low);
  const f32 a = ::fabsf(c);
  const f32 u = ::fminf(a * t, 112.0f);
  const f32 u_low = ::fmaf(a, t, -u) + a * t_low;
  const f32 n = nearest_over_ln2(-u);
  const f32 residue = expm1_residue(exp_residue(-u, n) - (u < 112.0f ? u_low : 0.0f));
  const f32 top = x < 0.0f ? scale(::fmaf(c, residue, c), n) : x;
  const f32 y = quotient(top, 1.0f + scale(1.0f + residue, n));
  return x == -infinity() ? not_a_number() : x > 11.0f ? x : y;
}

ONNXFUSE_DEVICE f64 gelu_tanh(f64 x) {
  return x * sigmoid(x * (1.5957691216057307 + 0.071354816272600254 * x * x));
}

}  // namespace onnxfuse

#endif  // ONNXFUSE_FUNCTIONS_CUH_
