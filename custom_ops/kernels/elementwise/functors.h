// The meaning of every operator on one element: a functor for each row of onnxfuse/program/ops.py, named as the row
// in camel case (`hard_swish` -> HardSwish).
//
// To add an operator: a row in ops.py, a functor here, and a device function in cuda/device if the row's CUDA text
// calls one; nothing else.  The build generates the opcode and its cost from the row, array_kernels.inc makes from the
// functor the kernels for each type T of the row and each choice of operands that are scalars, and the parser, planner
// and shape inference know the operator from its row.  tests/custom_ops then runs it against the row's NumPy text and ONNX
// Runtime.  A functor has one of these members:
//   static R apply(T a, ...)                       one element; a plain, branch-free body vectorizes.  T is the compute
//                                                  type: float for f32, f16 and bf16, uint8_t for bool.  R is T, or
//                                                  uint8_t for a comparison.
//   static void array(const T* a, T* out, size_t)  many elements of a unary operator; `out` may be `a`.  With two
//                                                  operands `array<1, 0>(a, b, out, n)` and so on: 0 for a scalar.
// and, if it has the operation in that form, `template <class V> static V vector(V a, ...)` for GCC's vector types,
// which chains use on registers.
//
// To let an operator take part in chains in place of such kernels (faster, not needed): the types in its row, a Link in
// chain_links.h of the functor's name and its case in chains.inc, and for two operands its links in stage_chain.cc.
//
// The file is compiled once for each instruction set, so everything is inside the namespace ONNXFUSE_ISA and calls
// nothing but compiler builtins and vector_math.h.
#include <cstdint>
#include <limits>
#include <type_traits>

#include "kernels/elementwise/float_to_integer.h"
#include "program/dtype.h"
#include "simd/half.h"
#include "simd/vector_math.h"

namespace onnxfuse {
namespace ONNXFUSE_ISA {

template <class T> constexpr bool is_float = std::is_floating_point<T>::value;

// Unsigned arithmetic that wraps around without promotion to int, whose overflow is undefined.
template <class T> using Wide = typename unsigned_of<(sizeof(T) < 4 ? 4 : sizeof(T))>::type;

struct Add {
  template <class V> static V vector(V a, V b) { return a + b; }
  template <class T> static T apply(T a, T b) {
    if constexpr (is_float<T>) return a + b;
    else return static_cast<T>(static_cast<Wide<T>>(a) + static_cast<Wide<T>>(b));
  }
};

struct Sub {
  template <class V> static V vector(V a, V b) { return a - b; }
  template <class T> static T apply(T a, T b) {
    if constexpr (is_float<T>) return a - b;
    else return static_cast<T>(static_cast<Wide<T>>(a) - static_cast<Wide<T>>(b));
  }
};

struct Mul {
  template <class V> static V vector(V a, V b) { return a * b; }
  template <class T> static T apply(T a, T b) {
    if constexpr (is_float<T>) return a * b;
    else return static_cast<T>(static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b));
  }
};

// What integers are divided by: 1 instead of 0 and of -1, for which there is no quotient of every dividend.
template <class T> T divisor_of(T b) {
  if constexpr (is_signed<T>) return b == 0 || b == -1 ? T(1) : b;
  else return b == 0 ? T(1) : b;
}

// a / b, rounded toward zero.  Processors divide vectors of floats only, but these give the same: the quotient of
// integers below 2^k is at least 2^-2k of its size away from the next integer that it does not reach, and half a unit in
// the last place of T's float is less than that.
template <class T> T quotient(T a, T b) {
  if constexpr (sizeof(T) == 8) {
    return a / b;
  } else {
    using Float = std::conditional_t<sizeof(T) == 4, double, float>;
    using Whole = std::conditional_t<sizeof(T) == 4, T, int32_t>;
    return static_cast<T>(static_cast<Whole>(static_cast<Float>(a) / static_cast<Float>(b)));
  }
}

// What is left of `a`, with its sign; 0 for division by 0.
template <class T> T remainder(T a, T b) {
  const T divisor = divisor_of(b);
  return static_cast<T>(static_cast<Wide<T>>(a) - static_cast<Wide<T>>(quotient(a, divisor)) * static_cast<Wide<T>>(divisor));
}

struct Div {
  template <class V> static V vector(V a, V b) { return a / b; }
  template <class T> static T apply(T a, T b) {
    if constexpr (is_float<T>) {
      return a / b;
    } else {
      const T whole = b == 0 ? T(0) : quotient(a, divisor_of(b));
      if constexpr (is_signed<T>) return b == -1 ? static_cast<T>(Wide<T>{0} - static_cast<Wide<T>>(a)) : whole;
      else return whole;
    }
  }
};

struct Mod {
  template <class T> static T apply(T a, T b) {
    const T rest = remainder(a, b);
    if constexpr (is_signed<T>) return rest != 0 && (rest < 0) != (b < 0) ? static_cast<T>(rest + b) : rest;
    else return rest;
  }
};

struct Fmod {
  static float apply(float a, float b) { return __builtin_fmodf(a, b); }
  static double apply(double a, double b) { return __builtin_fmod(a, b); }
  template <class T> static T apply(T a, T b) { return remainder(a, b); }
#if defined(__FMA__) || defined(__aarch64__)
  template <size_t AStep, size_t BStep> static void array(const float* a, const float* b, float* out, size_t n) {
    rests<AStep, BStep>(a, b, out, n);
  }
  template <size_t AStep, size_t BStep> static void array(const double* a, const double* b, double* out, size_t n) {
    rests<AStep, BStep>(a, b, out, n);
  }

 private:
  // a - b trunc(a / b), which is exact: where the quotient has a unit in the last place of 1/2 or less, the rounded one
  // is its whole part, or 1 more if that is next to it, and so the rest is a float.  C's function takes what is rare.
  // `out` may be `a` or `b`.
  template <size_t AStep, size_t BStep, class T> static void rests(const T* a, const T* b, T* out, size_t n) {
    constexpr size_t kBlock = 256;
    constexpr T limit = sizeof(T) == 4 ? T(0x1p22) : T(0x1p51);
    constexpr T most = std::numeric_limits<T>::max();
    T rest[kBlock];
    for (size_t at = 0; at < n; at += kBlock) {
      const size_t count = n - at < kBlock ? n - at : kBlock;
      const T* const x = a + at * AStep;
      const T* const y = b + at * BStep;
      int rare = 0;
      for (size_t i = 0; i < count; ++i) {
        const T dividend = math::absolute(x[i * AStep]);
        const T divisor = math::absolute(y[i * BStep]);
        const T ratio = dividend / divisor;
        const T left = math::madd(-truncated(ratio), divisor, dividend);
        rest[i] = math::with_sign_of(left < 0 ? left + divisor : left, x[i * AStep]);
        rare |= !(ratio < limit) | !(divisor <= most);
      }
      for (size_t i = 0; rare != 0 && i < count; ++i) rest[i] = apply(x[i * AStep], y[i * BStep]);
      __builtin_memcpy(out + at, rest, count * sizeof(T));
    }
  }
  static float truncated(float x) { return __builtin_truncf(x); }
  static double truncated(double x) { return __builtin_trunc(x); }
#endif
};

struct Pow {
  static float apply(float a, float b) { return b == 2.0f ? a * a : b == 3.0f ? a * a * a : math::pow(a, b); }
  static double apply(double a, double b) { return b == 2.0 ? a * a : b == 3.0 ? a * a * a : math::pow(a, b); }
  template <class T> static T apply(T a, T b) {
    return one_to_integer<T>(__builtin_pow(static_cast<double>(a), static_cast<double>(b)));
  }
  // `n` powers of a[i * AStep] by b[i * BStep]; `out` may be `a` or `b`.
  template <size_t AStep, size_t BStep> static void array(const float* a, const float* b, float* out, size_t n) {
    constexpr size_t kBlock = 256;
    float power[kBlock];
    for (size_t at = 0; at < n; at += kBlock) {
      const size_t count = n - at < kBlock ? n - at : kBlock;
      const float* const base = a + at * AStep;
      const float* const exponent = b + at * BStep;
      math::pow_array<AStep, BStep>(base, exponent, power, count);
#pragma GCC ivdep
      for (size_t i = 0; i < count; ++i) {
        const float x = base[i * AStep];
        const float y = exponent[i * BStep];
        out[at + i] = y == 2.0f ? x * x : y == 3.0f ? x * x * x : power[i];
      }
    }
  }
};

// x > y || x != x gives x: a NaN in either operand comes out.  Of a zero of either sign AArch64's instructions give +0 as
// the larger and -0 as the smaller, elsewhere the second comes out.
#if defined(__aarch64__)
template <class T> T of_equals(T a, T b, bool larger) {
  if constexpr (!is_float<T>) return b;
  else return a == 0 && (__builtin_signbit(b) != 0) == larger ? a : b;
}
struct Min {
  template <class T> static T apply(T a, T b) { return a < b || a != a ? a : a == b ? of_equals(a, b, false) : b; }
};

struct Max {
  template <class T> static T apply(T a, T b) { return a > b || a != a ? a : a == b ? of_equals(a, b, true) : b; }
};
#else
struct Min {
  template <class V> static V vector(V a, V b) {
    const V low = a < b ? a : b;
    return a != a ? a : low;
  }
  template <class T> static T apply(T a, T b) { return vector(a, b); }
};

struct Max {
  template <class V> static V vector(V a, V b) {
    const V high = a > b ? a : b;
    return a != a ? a : high;
  }
  template <class T> static T apply(T a, T b) { return vector(a, b); }
};
#endif

struct Neg {
  template <class V> static V vector(V a) { return -a; }
  template <class T> static T apply(T a) {
    if constexpr (is_float<T>) return -a;
    else return static_cast<T>(Wide<T>{0} - static_cast<Wide<T>>(a));
  }
};

struct Abs {
  static float apply(float a) { return __builtin_fabsf(a); }
  static double apply(double a) { return __builtin_fabs(a); }
  template <class T> static T apply(T a) {
    if constexpr (is_signed<T>) return a < 0 ? Neg::apply(a) : a;
    else return a;
  }
};

struct Sign {
  template <class T> static T apply(T a) {
    if constexpr (is_float<T>) return a != a ? a : static_cast<T>((a > 0) - (a < 0));
    else return static_cast<T>((a > 0) - (a < 0));
  }
};

#if defined(__aarch64__)
// ONNX Runtime's, of float: an estimate and two of Newton's steps, which give an infinity for what is nearly a denormal.
inline float inverse(float a) {
  const float first = vrecpes_f32(a);
  const float second = vrecpss_f32(a, first) * first;
  return vrecpss_f32(a, second) * second;
}
inline math::FloatVector inverse(math::FloatVector a) {
  const math::FloatVector first = vrecpeq_f32(a);
  const math::FloatVector second = vrecpsq_f32(a, first) * first;
  return vrecpsq_f32(a, second) * second;
}
#endif
template <class V> V inverse(V a) { return 1 / a; }

struct Reciprocal {
  template <class T> static T apply(T a) { return inverse(a); }
};

struct Sqrt {
  static float apply(float a) { return __builtin_sqrtf(a); }
  static double apply(double a) { return __builtin_sqrt(a); }
};

struct Floor {
  static float apply(float a) { return __builtin_floorf(a); }
  static double apply(double a) { return __builtin_floor(a); }
};

struct Ceil {
  static float apply(float a) { return __builtin_ceilf(a); }
  static double apply(double a) { return __builtin_ceil(a); }
};

struct Round {
  static float apply(float a) { return __builtin_rintf(a); }  // the mode is to nearest even, as ONNX Runtime leaves it
  static double apply(double a) { return __builtin_rint(a); }
};

#define ONNXFUSE_MATH_FUNCTOR(name, function)                                  \
  struct name {                                                                \
    template <class T> static T apply(T a) { return math::function(a); }      \
  };
ONNXFUSE_MATH_FUNCTOR(Exp, exp)
ONNXFUSE_MATH_FUNCTOR(Log, log)
ONNXFUSE_MATH_FUNCTOR(Tanh, tanh)
ONNXFUSE_MATH_FUNCTOR(Erf, erf)
ONNXFUSE_MATH_FUNCTOR(Sigmoid, sigmoid)
ONNXFUSE_MATH_FUNCTOR(Silu, silu)
ONNXFUSE_MATH_FUNCTOR(Softplus, softplus)
ONNXFUSE_MATH_FUNCTOR(Mish, mish)
ONNXFUSE_MATH_FUNCTOR(Gelu, gelu)
ONNXFUSE_MATH_FUNCTOR(GeluTanh, gelu_tanh)
ONNXFUSE_MATH_FUNCTOR(Asin, asin)
ONNXFUSE_MATH_FUNCTOR(Acos, acos)
ONNXFUSE_MATH_FUNCTOR(Atan, atan)
ONNXFUSE_MATH_FUNCTOR(Sinh, sinh)
ONNXFUSE_MATH_FUNCTOR(Cosh, cosh)
ONNXFUSE_MATH_FUNCTOR(Asinh, asinh)
ONNXFUSE_MATH_FUNCTOR(Acosh, acosh)
ONNXFUSE_MATH_FUNCTOR(Atanh, atanh)
#undef ONNXFUSE_MATH_FUNCTOR

// These work on arrays: an argument that is too large takes another road.
#define ONNXFUSE_MATH_ARRAY(name, function)                                                              \
  struct name {                                                                                          \
    template <class T> static void array(const T* a, T* out, size_t n) { math::function(a, out, n); } \
  };
ONNXFUSE_MATH_ARRAY(Sin, sin_array)
ONNXFUSE_MATH_ARRAY(Cos, cos_array)
ONNXFUSE_MATH_ARRAY(Tan, tan_array)
ONNXFUSE_MATH_ARRAY(RoundToF16, round_to_f16)
ONNXFUSE_MATH_ARRAY(RoundToBf16, round_to_bf16)
#undef ONNXFUSE_MATH_ARRAY

struct LoadF16 {
  static void array(const uint16_t* a, float* out, size_t n) { math::f16_to_f32(a, out, n); }
};

struct LoadBf16 {
  static void array(const uint16_t* a, float* out, size_t n) { math::bf16_to_f32(a, out, n); }
};

struct StoreF16 {
  static void array(const float* a, uint16_t* out, size_t n) { math::f32_to_f16(a, out, n); }
};

struct StoreBf16 {
  static void array(const float* a, uint16_t* out, size_t n) { math::f32_to_bf16(a, out, n); }
};

// As in ONNX Runtime, NaN comes out as it went in, and -0 too but on AArch64, where the larger of two zeros is +0.
struct Relu {
#if defined(__aarch64__)
  template <class V> static V vector(V a) { return a <= V{} ? V{} : a; }
#else
  template <class V> static V vector(V a) { return a < V{} ? V{} : a; }
#endif
  template <class T> static T apply(T a) { return vector(a); }
};

struct LeakyRelu {
  template <class V> static V vector(V a, V slope) {
    const V scaled = a * slope;
    return a < V{} ? scaled : a;
  }
  template <class T> static T apply(T a, T slope) { return a < T(0) ? Mul::apply(a, slope) : a; }
};

struct Elu {
  template <class T> static T apply(T a, T alpha) {
    const T negative = alpha * math::expm1(a < T(0) ? a : T(0));
    return a < T(0) ? negative : a;
  }
};

struct HardSigmoid {
  template <class V> static V vector(V a, V alpha, V beta) {
    const V zero = V{};
    const V one = zero + 1;
    const V line = line_of(a, alpha, beta);
    const V low = line > one ? one : line;
    return low < zero ? zero : low;
  }
  template <class T> static T apply(T a, T alpha, T beta) { return vector(a, alpha, beta); }

 private:
  template <class V> static V line_of(V a, V alpha, V beta) {
#if defined(__aarch64__)  // where ONNX Runtime rounds once
    if constexpr (std::is_same<V, float>::value || std::is_same<V, math::FloatVector>::value) {
      return math::madd(a, alpha, beta);
    }
#endif
    return a * alpha + beta;
  }
};

// The sixth is that of float in every type, as an attribute of HardSigmoid.
struct HardSwish {
  template <class V, class T> static V gate(V a, T) {
    const V zero = V{};
    return a * HardSigmoid::vector(a, zero + static_cast<T>(1.0F / 6.0F), zero + static_cast<T>(0.5));
  }
  template <class T> static T apply(T a) { return gate(a, T{}); }
};

// ONNX Runtime multiplies by the inverse; a division would round differently.
struct Softsign {
  template <class T> static T apply(T a) { return a * inverse(T(1) + Abs::apply(a)); }
};

struct Equal {
  template <class T> static uint8_t apply(T a, T b) { return a == b; }
};

struct Less {
  template <class T> static uint8_t apply(T a, T b) { return a < b; }
};

struct LessEqual {
  template <class T> static uint8_t apply(T a, T b) { return a <= b; }
};

// ONNX Runtime's Where gives 0 for a -0 in its second operand, and keeps one in the third.
struct Where {
  template <class T> static T apply(uint8_t condition, T a, T b) { return condition ? (a == 0 ? T(0) : a) : b; }
};

// Booleans are bytes; any byte but 0 is true.
struct And {
  static uint8_t apply(uint8_t a, uint8_t b) { return (a != 0) & (b != 0); }
};

struct Or {
  static uint8_t apply(uint8_t a, uint8_t b) { return (a != 0) | (b != 0); }
};

struct Xor {
  static uint8_t apply(uint8_t a, uint8_t b) { return (a != 0) ^ (b != 0); }
};

struct Not {
  static uint8_t apply(uint8_t a) { return a == 0; }
};

struct BitwiseAnd {
  template <class T> static T apply(T a, T b) { return static_cast<T>(a & b); }
};

struct BitwiseOr {
  template <class T> static T apply(T a, T b) { return static_cast<T>(a | b); }
};

struct BitwiseXor {
  template <class T> static T apply(T a, T b) { return static_cast<T>(a ^ b); }
};

struct BitwiseNot {
  template <class T> static T apply(T a) { return static_cast<T>(~a); }
};

struct ShiftLeft {
  template <class T> static T apply(T a, T b) {
    constexpr T bits = 8 * sizeof(T);
    return b < bits ? static_cast<T>(static_cast<Wide<T>>(a) << b) : T(0);
  }
};

struct ShiftRight {
  template <class T> static T apply(T a, T b) {
    constexpr T bits = 8 * sizeof(T);
    return b < bits ? static_cast<T>(a >> b) : T(0);
  }
};

// The result is in the compute type of `To`; f16 and bf16 are rounded to their precision.
template <DType From, DType To, class T, class R> struct CastTo {
  static R apply(T a) {
    if constexpr (To == DType::boolean) return a != 0;
    else if constexpr (To == DType::f16) return math::round_to_f16(static_cast<float>(a));
    else if constexpr (To == DType::bf16) return math::round_to_bf16(static_cast<float>(a));
    else if constexpr (is_float<T> && !is_float<R>) return float_to_integer<From, R>(a);
    else return static_cast<R>(a);
  }
};

struct Cast {};  // the row is served by CastTo: its operand has a type of its own

// Whether the sign of an integer's type does not count for an operator: of the same bits it makes the same.
template <class F, class... Others> constexpr bool is_one_of = (std::is_same_v<F, Others> || ...);
template <class F>
constexpr bool ignores_sign =
    is_one_of<F, Add, Sub, Mul, Equal, Where, BitwiseAnd, BitwiseOr, BitwiseXor, BitwiseNot>;

}  // namespace ONNXFUSE_ISA
}  // namespace onnxfuse
