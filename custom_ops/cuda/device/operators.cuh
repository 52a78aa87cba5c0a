// The operators of onnxfuse/program/ops.py that are neither a C++ expression nor a function of functions.cuh, on the
// types that are computed with.  They mean what custom_ops/kernels/elementwise/functors.h means.

#ifndef ONNXFUSE_OPERATORS_CUH_
#define ONNXFUSE_OPERATORS_CUH_

namespace onnxfuse {

// Unsigned arithmetic that wraps around without promotion to int, whose overflow is undefined.
template <class T> using Wide = Word<(sizeof(T) < 4 ? 4 : sizeof(T))>;

template <class T> ONNXFUSE_DEVICE T add(T a, T b) {
  if constexpr (is_float<T>) return a + b;
  else return static_cast<T>(static_cast<Wide<T>>(a) + static_cast<Wide<T>>(b));
}

template <class T> ONNXFUSE_DEVICE T sub(T a, T b) {
  if constexpr (is_float<T>) return a - b;
  else return static_cast<T>(static_cast<Wide<T>>(a) - static_cast<Wide<T>>(b));
}

template <class T> ONNXFUSE_DEVICE T mul(T a, T b) {
  if constexpr (is_float<T>) return a * b;
  else return static_cast<T>(static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b));
}

template <class T> ONNXFUSE_DEVICE T neg(T a) {
  if constexpr (is_float<T>) return -a;
  else return static_cast<T>(Wide<T>{0} - static_cast<Wide<T>>(a));
}

template <class T> ONNXFUSE_DEVICE bool is_negative(T x) {
  if constexpr (is_signed<T>) return x < T(0);
  else return false;
}

template <class T> ONNXFUSE_DEVICE bool is_minus_one(T x) {
  if constexpr (is_signed<T>) return x == -1;
  else return false;
}

// Truncates; x / 0 is 0, and the minimum over -1 wraps.
template <class T> ONNXFUSE_DEVICE T div(T a, T b) {
  if constexpr (is_float<T>) {
    return a / b;
  } else {
    if (b == 0) return 0;
    if (is_minus_one(b)) return neg(a);
    return static_cast<T>(a / b);
  }
}

// The sign of the divisor; x mod 0 is 0.
template <class T> ONNXFUSE_DEVICE T mod(T a, T b) {
  if (b == 0 || is_minus_one(b)) return 0;
  const T rest = static_cast<T>(a % b);
  if constexpr (is_signed<T>) return rest != 0 && (rest < 0) != (b < 0) ? static_cast<T>(rest + b) : rest;
  else return rest;
}

// The sign of the dividend.
template <class T> ONNXFUSE_DEVICE T fmod(T a, T b) {
  if constexpr (is_same<T, f32>) {
    return ::fmodf(a, b);
  } else if constexpr (is_same<T, f64>) {
    return ::fmod(a, b);
  } else {
    if (b == 0 || is_minus_one(b)) return 0;
    return static_cast<T>(a % b);
  }
}

// A NaN in either operand comes out.
template <class T> ONNXFUSE_DEVICE T min(T a, T b) { return a != a ? a : a < b ? a : b; }
template <class T> ONNXFUSE_DEVICE T max(T a, T b) { return a != a ? a : a > b ? a : b; }

template <class T> ONNXFUSE_DEVICE T abs(T a) {
  if constexpr (is_same<T, f32>) return ::fabsf(a);
  else if constexpr (is_same<T, f64>) return ::fabs(a);
  else return is_negative(a) ? neg(a) : a;
}

template <class T> ONNXFUSE_DEVICE T sign(T a) {
  const T result = static_cast<T>((a > T(0)) - is_negative(a));
  return a != a ? a : result;
}

ONNXFUSE_DEVICE f32 sqrt(f32 a) { return ::sqrtf(a); }
ONNXFUSE_DEVICE f64 sqrt(f64 a) { return ::sqrt(a); }
ONNXFUSE_DEVICE f32 floor(f32 a) { return ::floorf(a); }
ONNXFUSE_DEVICE f64 floor(f64 a) { return ::floor(a); }
ONNXFUSE_DEVICE f32 ceil(f32 a) { return ::ceilf(a); }
ONNXFUSE_DEVICE f64 ceil(f64 a) { return ::ceil(a); }
ONNXFUSE_DEVICE f32 round(f32 a) { return ::rintf(a); }
ONNXFUSE_DEVICE f64 round(f64 a) { return ::rint(a); }

// As in ONNX Runtime, -0 and NaN come out as they went in.
template <class T> ONNXFUSE_DEVICE T relu(T a) { return is_negative(a) ? T(0) : a; }

template <class T> ONNXFUSE_DEVICE T leaky_relu(T a, T slope) { return is_negative(a) ? mul(a, slope) : a; }

template <class T> ONNXFUSE_DEVICE T hard_sigmoid(T a, T alpha, T beta) {
  const T line = a * alpha + beta;
  const T low = line > T(1) ? T(1) : line;
  return low < T(0) ? T(0) : low;
}

template <class T> ONNXFUSE_DEVICE T hard_swish(T a) { return a * hard_sigmoid(a, T(1.0f / 6.0f), T(0.5)); }

// ONNX Runtime multiplies by the inverse; a division would round differently.
template <class T> ONNXFUSE_DEVICE T softsign(T a) { return a * (T(1) / (T(1) + abs(a))); }

// ONNX Runtime's Where gives 0 for a -0 in its second operand, and keeps one in the third.
template <class T> ONNXFUSE_DEVICE T where(bool condition, T a, T b) { return condition ? (a == T(0) ? T(0) : a) : b; }

// A shift by the width or more gives 0.
template <class T> ONNXFUSE_DEVICE T shift_left(T a, T b) {
  return b < 8 * sizeof(T) ? static_cast<T>(static_cast<Wide<T>>(a) << b) : T(0);
}

template <class T> ONNXFUSE_DEVICE T shift_right(T a, T b) {
  return b < 8 * sizeof(T) ? static_cast<T>(a >> b) : T(0);
}

// Out of range and NaN give what the x86 conversion instructions give, as ONNX Runtime's casts on CPUs do: the minimum
// of the signed type that is converted to, of which narrower types keep the low bits.  An unsigned type has its upper
// half converted after subtracting it.
template <class To, class From> ONNXFUSE_DEVICE To float_to_integer(From x) {
  constexpr bool wide = sizeof(To) == 8;
  constexpr From limit = wide ? From(0x1p63) : From(0x1p31);
  const bool upper = sizeof(To) >= 4 && !is_signed<To> && x >= limit;
  const From low = upper ? x - limit : x;
  const bool fits = low >= -limit && low < limit;
  if constexpr (wide) {
    const u64 bits = fits ? static_cast<u64>(static_cast<i64>(low)) : u64{1} << 63;
    return static_cast<To>(upper ? bits ^ (u64{1} << 63) : bits);
  } else {
    const u32 bits = fits ? static_cast<u32>(static_cast<i32>(low)) : u32{1} << 31;
    return static_cast<To>(upper ? bits ^ (u32{1} << 31) : bits);
  }
}

// The value of type T, which is computed with as widen(T); f16 and bf16 are rounded to their precision.
template <class T, class From> ONNXFUSE_DEVICE auto cast(From x) {
  if constexpr (is_same<T, boolean>) return x != From(0);
  else if constexpr (is_half<T>) return widen(narrow<T>(static_cast<f32>(x)));
  else if constexpr (is_float<From> && !is_float<T>) return float_to_integer<T>(x);
  else return static_cast<T>(x);
}

}  // namespace onnxfuse

#endif  // ONNXFUSE_OPERATORS_CUH_
