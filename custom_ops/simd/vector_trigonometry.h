// Sine, cosine, tangent and their inverses, by the rules of vector_math.h, a part of which this is.  sin, cos and tan come as
// array functions, because an argument beyond kTrigLimit takes another road.

#ifndef ONNXFUSE_VECTOR_TRIGONOMETRY_H_
#define ONNXFUSE_VECTOR_TRIGONOMETRY_H_

#include "simd/vector_math_core.h"

namespace onnxfuse {
namespace ONNXFUSE_ISA {
namespace math {

// sin r - r and cos r - 1 for |r| <= pi/4.  Remez, degrees 7 and 8 in r, errors 7.8e-9 and 3.9e-10.
template <typename T>
ONNXFUSE_INLINE T sin_residue(T r) {
  const T z = r * r;
  return madd(r * z, poly(z, T(-0.16666666666666666), T(0.0083327218614068985), T(-0.00019575738911154416)), r);
}

template <typename T>
ONNXFUSE_INLINE T cos_residue(T r) {
  const T z = r * r;
  const T p = poly(z, T(0.041666666666666664), T(-0.0013888196340228109), T(2.4521958248404909e-05));
  return madd(z, madd(z, p, T(-0.5)), T(1));
}

// x - n pi/2 for the nearest integer n, whose low bits go to `quadrant`.  pi/2 in three parts of 27, 27 and 53 bits
// makes the first two products and differences exact, with or without fused multiply-add, for |x| < kTrigLimit.
constexpr float kTrigLimit = 0x1p26f;

ONNXFUSE_INLINE double trig_residue(double x, uint32_t* quadrant) {
  const double t = x * 0x1.45f306dc9c883p-1 + kRound64;
  *quadrant = static_cast<uint32_t>(to_bits(t));
  const double n = t - kRound64;
  return madd(n, -0x1.a62633145c06ep-58, madd(n, -0x1.10b4610000000p-30, madd(n, -0x1.921fb54000000p+0, x)));
}

ONNXFUSE_INLINE float sin_in_range(float x) {
  uint32_t quadrant;
  const float r = static_cast<float>(trig_residue(x, &quadrant));
  const float y = quadrant & 1 ? cos_residue(r) : sin_residue(r);
  return x == 0.0f ? x : from_bits(to_bits(y) ^ ((quadrant & 2) << 30));
}

ONNXFUSE_INLINE float cos_in_range(float x) {
  uint32_t quadrant;
  const float r = static_cast<float>(trig_residue(x, &quadrant));
  const float y = quadrant & 1 ? sin_residue(r) : cos_residue(r);
  return from_bits(to_bits(y) ^ (((quadrant + 1) & 2) << 30));
}

ONNXFUSE_INLINE float tan_in_range(float x) {
  uint32_t quadrant;
  const double r = trig_residue(x, &quadrant);
  const float s = static_cast<float>(sin_residue(r) / cos_residue(r));
  const float c = static_cast<float>(-cos_residue(r) / sin_residue(r));
  return x == 0.0f ? x : (quadrant & 1 ? c : s);
}

// out[i] = in_range(x[i]), or beyond_range(x[i]) where |x[i]| >= kTrigLimit or NaN.  `out` may be `x`.
template <typename InRange, typename BeyondRange>
ONNXFUSE_INLINE void trig_array(const float* x, float* out, size_t n, InRange in_range, BeyondRange beyond_range) {
  constexpr size_t kBlock = 256;
  for (size_t start = 0; start < n; start += kBlock) {
    const size_t count = n - start < kBlock ? n - start : kBlock;
    float block[kBlock];
    uint32_t largest = 0;
    for (size_t i = 0; i < count; ++i) {
      block[i] = x[start + i];
      const uint32_t magnitude = to_bits(block[i]) & 0x7fffffffu;
      largest = magnitude > largest ? magnitude : largest;
    }
    for (size_t i = 0; i < count; ++i) out[start + i] = in_range(block[i]);
    if (largest < to_bits(kTrigLimit)) continue;
    for (size_t i = 0; i < count; ++i) {
      if (!(absolute(block[i]) < kTrigLimit)) out[start + i] = beyond_range(block[i]);
    }
  }
}

static inline void sin_array(const float* x, float* out, size_t n) {
  trig_array(x, out, n, [](float v) { return sin_in_range(v); }, [](float v) { return __builtin_sinf(v); });
}

static inline void cos_array(const float* x, float* out, size_t n) {
  trig_array(x, out, n, [](float v) { return cos_in_range(v); }, [](float v) { return __builtin_cosf(v); });
}

static inline void tan_array(const float* x, float* out, size_t n) {
  trig_array(x, out, n, [](float v) { return tan_in_range(v); }, [](float v) { return __builtin_tanf(v); });
}

static inline void sin_array(const double* x, double* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = std::sin(x[i]);
}

static inline void cos_array(const double* x, double* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = std::cos(x[i]);
}

static inline void tan_array(const double* x, double* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = std::tan(x[i]);
}

constexpr float kPiHigh = 0x1.921fb6p+1f;
constexpr float kPiLow = -0x1.777a5cp-24f;

// pi / 2 - x and pi - x, of which the first part of pi is no more than a float.
ONNXFUSE_INLINE float half_pi_less(float x) { return 0.5f * kPiHigh - (x - 0.5f * kPiLow); }
ONNXFUSE_INLINE float pi_less(float x) { return kPiHigh - (x - kPiLow); }

// asin s for 0 <= s <= 1/2, z = s^2.  Remez, weight z: degree 6, error 3.2e-11.
ONNXFUSE_INLINE float asin_residue(float s, float z) {
  const float p = poly(z, 0.166666667f, 0.0749998333f, 0.0446521616f, 0.0301949526f, 0.0241608724f, 0.00869385779f,
                       0.0334029526f);
  return madd(s * z, p, s);
}

// Above 1/2: asin x = pi/2 - 2 asin(sqrt((1 - x) / 2)), whose square root, of an exact difference, is NaN for x > 1.
ONNXFUSE_INLINE float asin(float x) {
  const float a = absolute(x);
  const bool large = a > 0.5f;
  const float z = large ? 0.5f - 0.5f * a : a * a;
  const float y = asin_residue(large ? __builtin_sqrtf(z) : a, z);
  return with_sign_of(large ? half_pi_less(2.0f * y) : y, x);
}

ONNXFUSE_INLINE float acos(float x) {
  const float a = absolute(x);
  const bool large = a > 0.5f;
  const float z = large ? 0.5f - 0.5f * a : a * a;
  const float y = asin_residue(large ? __builtin_sqrtf(z) : a, z);
  const float near_one = x < 0.0f ? pi_less(2.0f * y) : 2.0f * y;
  return large ? near_one : half_pi_less(with_sign_of(y, x));
}

// Above 1: atan x = pi/2 - atan(1/x).  On [0, 1], z = t^2: Remez, weight z, degree 9, error 7.1e-10.
ONNXFUSE_INLINE float atan(float x) {
  const float a = absolute(x);
  const bool large = a > 1.0f;
  const float t = large ? 1.0f / a : a;
  const float z = t * t;
  const float p = poly(z, -0.333333333f, 0.199998963f, -0.14282596f, 0.11075056f, -0.0886967294f, 0.0686570587f,
                       -0.0463202608f, 0.0238373380f, -0.00789118631f, 0.00122171301f);
  const float y = madd(t * z, p, t);
  return with_sign_of(large ? half_pi_less(y) : y, x);
}

static inline double asin(double x) { return std::asin(x); }
static inline double acos(double x) { return std::acos(x); }
static inline double atan(double x) { return std::atan(x); }

}  // namespace math
}  // namespace ONNXFUSE_ISA
}  // namespace onnxfuse

#endif  // ONNXFUSE_VECTOR_TRIGONOMETRY_H_
