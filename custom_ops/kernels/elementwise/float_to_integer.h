// Floats to integers as ONNX Runtime's casts make them.  A part of functors.h, compiled once for each instruction set as that
// is.
#include <cstdint>
#include <limits>
#include <type_traits>

#include "program/dtype.h"

namespace onnxfuse {
namespace ONNXFUSE_ISA {

template <class T> constexpr bool is_signed = static_cast<T>(-1) < static_cast<T>(1);

template <int Size> struct unsigned_of;
template <> struct unsigned_of<1> { using type = uint8_t; };
template <> struct unsigned_of<2> { using type = uint16_t; };
template <> struct unsigned_of<4> { using type = uint32_t; };
template <> struct unsigned_of<8> { using type = uint64_t; };

template <int Size> struct signed_of;
template <> struct signed_of<4> { using type = int32_t; };
template <> struct signed_of<8> { using type = int64_t; };

#if defined(__aarch64__)
// Out of range and NaN give what the conversion instructions of AArch64 give, for ONNX Runtime's casts are those: the nearest
// number of the integer that is converted to, and 0 for NaN.
template <class Integer, class From> Integer to_nearest(From x) {
  constexpr From limit = sizeof(Integer) == 4 ? (is_signed<Integer> ? From(0x1p31) : From(0x1p32))
                                              : (is_signed<Integer> ? From(0x1p63) : From(0x1p64));
  constexpr From lowest = is_signed<Integer> ? -limit : From(0);
  constexpr auto least = static_cast<Integer>(is_signed<Integer> ? Integer{1} << (8 * sizeof(Integer) - 1) : Integer{0});
  constexpr auto highest = static_cast<Integer>(~least);
  return x >= limit ? highest : x > lowest ? static_cast<Integer>(x) : x != x ? Integer{0} : least;
}

// Narrower types keep the low bits of what ONNX Runtime's vectors of the source are converted to.  (Behind its vectors it
// converts to int32_t and uint32_t; where that makes a difference what comes out depends on the place.)
template <DType From, class To, class T> To float_to_integer(T x) {
  constexpr bool in_signed = is_signed<To> || (sizeof(To) == 1 && From != DType::f16) ||
                             (sizeof(To) == 2 && (From == DType::bf16 || From == DType::f64));
  constexpr int size = sizeof(To) == 8 || From == DType::f64 ? 8 : 4;
  using Whole = std::conditional_t<in_signed, typename signed_of<size>::type, typename unsigned_of<size>::type>;
  return static_cast<To>(to_nearest<Whole>(x));
}

// The same of one number, where there are no vectors.
template <class To> To one_to_integer(double x) {
  if constexpr (sizeof(To) == 8) return to_nearest<To>(x);
  else if constexpr (is_signed<To>) return static_cast<To>(to_nearest<int32_t>(x));
  else return static_cast<To>(to_nearest<uint32_t>(x));
}
#else
// Out of range and NaN give what the x86 conversion instructions give, for ONNX Runtime's casts are those: the minimum
// of the signed type that is converted to, of which narrower types keep the low bits.  An unsigned type has its upper
// half converted after subtracting it.
template <class Integer, class From> Integer to_signed(From x) {
  constexpr From limit = sizeof(Integer) == 4 ? From(2147483648.0) : From(9223372036854775808.0);
  constexpr Integer minimum = sizeof(Integer) == 4 ? static_cast<Integer>(INT32_MIN) : static_cast<Integer>(INT64_MIN);
  return x >= -limit && x < limit ? static_cast<Integer>(x) : minimum;
}

template <DType, class To, class T> To float_to_integer(T x) {
  if constexpr (sizeof(To) < 4) {
    return static_cast<To>(to_signed<int32_t>(x));
  } else if constexpr (is_signed<To>) {
    return to_signed<To>(x);
  } else {
    using Signed = typename signed_of<sizeof(To)>::type;
    constexpr T half = sizeof(To) == 4 ? T(2147483648.0) : T(9223372036854775808.0);
    constexpr To bit = To{1} << (8 * sizeof(To) - 1);
    const bool upper = x >= half;
    const To low = static_cast<To>(to_signed<Signed>(upper ? x - half : x));
    return upper ? low ^ bit : low;
  }
}

template <class To> To one_to_integer(double x) { return float_to_integer<DType::f64, To>(x); }
#endif

}  // namespace ONNXFUSE_ISA
}  // namespace onnxfuse
