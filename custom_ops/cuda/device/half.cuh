// From elements as they are stored to values that are computed with (widen), and back (narrow).
//
// f16 and bf16 become float, exactly.  Back they are rounded to nearest, ties to even; overflow gives an infinity, NaN
// stays NaN, denormals are right.  The conversion instructions do that; the integer forms are for compute capability
// 7.5, which has none for bf16, and for the emulation.

#ifndef ONNXFUSE_HALF_CUH_
#define ONNXFUSE_HALF_CUH_

namespace onnxfuse {

template <class T> ONNXFUSE_DEVICE T widen(T x) { return x; }
ONNXFUSE_DEVICE bool widen(boolean x) { return x.bits != 0; }
ONNXFUSE_DEVICE f32 widen(bf16 x) { return __uint_as_float(static_cast<u32>(x.bits) << 16); }

ONNXFUSE_DEVICE f32 widen(f16 x) {
#ifdef __CUDA_ARCH__
  f32 result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
  return result;
#else
  // Exponent and mantissa move into a float's place; a multiplication by 2^112 puts the exponent right.
  const u32 magnitude = x.bits & 0x7fffu;
  const u32 finite = __float_as_uint(__uint_as_float(magnitude << 13) * 0x1p112f);
  const u32 special = (magnitude << 13) | 0x7f800000u;
  return __uint_as_float((magnitude < 0x7c00u ? finite : special) | ((x.bits & 0x8000u) << 16));
#endif
}

template <class T> struct Narrow {
  template <class C> static ONNXFUSE_DEVICE T one(C x) { return x; }
};

template <> struct Narrow<boolean> {
  static ONNXFUSE_DEVICE boolean one(bool x) { return boolean{static_cast<u8>(x)}; }
};

template <> struct Narrow<f16> {
  static ONNXFUSE_DEVICE f16 one(f32 x) {
#ifdef __CUDA_ARCH__
    f16 result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
    return result;
#else
    // Normal results: the 13 bits that go away are rounded by adding just under half of them, plus one where the kept
    // part is odd.  Denormal results: adding 1/2 leaves the rounded multiple of 2^-24 in the low bits of the sum.
    const u32 bits = __float_as_uint(x);
    const u32 magnitude = bits & 0x7fffffffu;
    const u32 denormal = __float_as_uint(__uint_as_float(magnitude) + 0.5f) - __float_as_uint(0.5f);
    const u32 rounded = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    u32 half = magnitude < __float_as_uint(0x1p-14f) ? denormal : rounded;
    half = magnitude >= __float_as_uint(65520.0f) ? 0x7c00u : half;
    half = magnitude > 0x7f800000u ? 0x7e00u : half;
    return f16{static_cast<u16>(half | ((bits >> 16) & 0x8000u))};
#endif
  }
};

template <> struct Narrow<bf16> {
  static ONNXFUSE_DEVICE bf16 one(f32 x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    bf16 result;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
    return result;
#else
    const u32 bits = __float_as_uint(x);
    const u32 rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    return bf16{static_cast<u16>(((bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : rounded) >> 16)};
#endif
  }
};

// The element of type T that is stored for a computed value.
template <class T, class C> ONNXFUSE_DEVICE T narrow(C x) { return Narrow<T>::one(x); }

// Two neighbours of f16 or bf16 as the word they are stored in, the first in the lower half.
template <class T> ONNXFUSE_DEVICE u32 narrow_two(f32 first, f32 second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  u32 result;
  if constexpr (is_same<T, f16>) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(second), "f"(first));
  else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(second), "f"(first));
  return result;
#else
  return narrow<T>(first).bits | (static_cast<u32>(narrow<T>(second).bits) << 16);
#endif
}

}  // namespace onnxfuse

#endif  // ONNXFUSE_HALF_CUH_
