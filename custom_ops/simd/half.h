// Conversions of arrays between float and the 16-bit floating-point formats.
//
// To 16 bits: nearest, ties to even; overflow gives an infinity; NaN stays a quiet NaN with its sign; denormals are
// right.  From 16 bits: exact (a signalling NaN comes out quiet where the hardware converts).  `in` and `out` may be
// the same array in the round_to functions.  The header is compiled once for each instruction set, like vector_math.h;
// the loops without intrinsics are branch-free so that the compiler vectorizes them.

#ifndef ONNXFUSE_HALF_H_
#define ONNXFUSE_HALF_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "simd/vector_math.h"

namespace onnxfuse {
namespace ONNXFUSE_ISA {
namespace math {

// ---------------------------------------------------------------------------------------------- one value

// Exponent and mantissa move into a float's place; a multiplication by 2^112 puts the exponent right, denormals
// included.
ONNXFUSE_INLINE float f16_to_f32(uint16_t h) {
#if defined(__aarch64__)
  __fp16 value;
  std::memcpy(&value, &h, sizeof value);
  return value;
#else
  const uint32_t magnitude = h & 0x7fffu;
  const uint32_t finite = to_bits(from_bits(magnitude << 13) * 0x1p112f);
  const uint32_t special = (magnitude << 13) | 0x7f800000u;
  const uint32_t bits = magnitude < 0x7c00u ? finite : special;
  return from_bits(bits | ((h & 0x8000u) << 16));
#endif
}

// Normal results: round the 13 bits that go away by adding just under half of them, plus one where the kept part is
// odd.  Denormal results: adding 1/2 leaves the rounded multiple of 2^-24 in the low bits of the sum.
ONNXFUSE_INLINE uint16_t f32_to_f16(float x) {
#if defined(__aarch64__)
  const __fp16 value = static_cast<__fp16>(x);
  uint16_t h;
  std::memcpy(&h, &value, sizeof h);
  return h;
#else
  const uint32_t bits = to_bits(x);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t denormal = to_bits(from_bits(magnitude) + 0.5f) - to_bits(0.5f);
  const uint32_t rounded = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  uint32_t h = magnitude < to_bits(0x1p-14f) ? denormal : rounded;
  h = magnitude >= to_bits(65520.0f) ? 0x7c00u : h;
  h = magnitude > 0x7f800000u ? nan : h;
  return static_cast<uint16_t>(h | ((bits >> 16) & 0x8000u));
#endif
}

ONNXFUSE_INLINE float bf16_to_f32(uint16_t h) { return from_bits(uint32_t{h} << 16); }

ONNXFUSE_INLINE uint32_t round_bf16_bits(float x) {
  const uint32_t bits = to_bits(x);
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return (bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : rounded;
}

ONNXFUSE_INLINE uint16_t f32_to_bf16(float x) { return static_cast<uint16_t>(round_bf16_bits(x) >> 16); }

ONNXFUSE_INLINE float round_to_f16(float x) { return f16_to_f32(f32_to_f16(x)); }
ONNXFUSE_INLINE float round_to_bf16(float x) { return from_bits(round_bf16_bits(x) & 0xffff0000u); }

// Through float, as ONNX Runtime's Cast does.
ONNXFUSE_INLINE uint16_t f64_to_f16(double x) { return f32_to_f16(static_cast<float>(x)); }
ONNXFUSE_INLINE uint16_t f64_to_bf16(double x) { return f32_to_bf16(static_cast<float>(x)); }

// ---------------------------------------------------------------------------------------------- arrays

static inline void f16_to_f32(const uint16_t* in, float* out, size_t n) {
  size_t i = 0;
#if defined(__F16C__)
  for (; i < n - n % 8; i += 8) {
    const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(h));
  }
#endif
  for (; i < n; ++i) out[i] = f16_to_f32(in[i]);
}

static inline void f32_to_f16(const float* in, uint16_t* out, size_t n) {
  size_t i = 0;
#if defined(__F16C__)
  for (; i < n - n % 8; i += 8) {
    const __m128i h = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), h);
  }
#endif
  for (; i < n; ++i) out[i] = f32_to_f16(in[i]);
}

static inline void round_to_f16(const float* in, float* out, size_t n) {
  size_t i = 0;
#if defined(__F16C__)
  for (; i < n - n % 8; i += 8) {
    const __m128i h = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(h));
  }
#endif
  for (; i < n; ++i) out[i] = round_to_f16(in[i]);
}

static inline void bf16_to_f32(const uint16_t* in, float* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = bf16_to_f32(in[i]);
}

static inline void f32_to_bf16(const float* in, uint16_t* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = f32_to_bf16(in[i]);
}

static inline void round_to_bf16(const float* in, float* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = round_to_bf16(in[i]);
}

static inline void f64_to_f16(const double* in, uint16_t* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = f64_to_f16(in[i]);
}

static inline void f64_to_bf16(const double* in, uint16_t* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = f64_to_bf16(in[i]);
}

}  // namespace math
}  // namespace ONNXFUSE_ISA
}  // namespace onnxfuse

#endif  // ONNXFUSE_HALF_H_
