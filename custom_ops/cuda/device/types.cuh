// Element types, and their bits.
//
// The prelude, of which this is the first part, stands before every generated kernel (onnxfuse/cuda/prelude.py gives
// the order).  It includes nothing, so that NVRTC compiles it without a toolkit; the tests compile the same text as
// C++17 (tests/cuda/emulation).  An element is stored as f16, bf16, boolean or a plain type; it is computed with as the
// type that widen() gives.

#ifndef ONNXFUSE_TYPES_CUH_
#define ONNXFUSE_TYPES_CUH_

#define ONNXFUSE_DEVICE __device__ __forceinline__

namespace onnxfuse {

using i8 = signed char;
using i16 = short;
using i32 = int;
using i64 = long long;
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using f32 = float;
using f64 = double;
struct f16 { u16 bits; };
struct bf16 { u16 bits; };
struct boolean { u8 bits; };  // any byte but 0 is true

template <class A, class B> constexpr bool is_same = false;
template <class A> constexpr bool is_same<A, A> = true;
template <class T> constexpr bool is_half = is_same<T, f16> || is_same<T, bf16>;
template <class T> constexpr bool is_float = is_same<T, f32> || is_same<T, f64>;
template <class T> constexpr bool is_signed = static_cast<T>(-1) < static_cast<T>(1);

template <int Bytes> struct WordOf;
template <> struct WordOf<1> { using type = u8; };
template <> struct WordOf<2> { using type = u16; };
template <> struct WordOf<4> { using type = u32; };
template <> struct WordOf<8> { using type = u64; };
// The unsigned integer of this many bytes.
template <int Bytes> using Word = typename WordOf<Bytes>::type;

template <class T> ONNXFUSE_DEVICE T from_bits(Word<sizeof(T)> bits) {
  if constexpr (is_same<T, f32>) return __uint_as_float(bits);
  else if constexpr (is_same<T, f64>) return __longlong_as_double(static_cast<i64>(bits));
  else if constexpr (is_half<T> || is_same<T, boolean>) return T{bits};
  else return static_cast<T>(bits);
}

template <class T> ONNXFUSE_DEVICE Word<sizeof(T)> to_bits(T x) {
  if constexpr (is_same<T, f32>) return __float_as_uint(x);
  else if constexpr (is_same<T, f64>) return static_cast<u64>(__double_as_longlong(x));
  else if constexpr (is_half<T> || is_same<T, boolean>) return x.bits;
  else return static_cast<Word<sizeof(T)>>(x);
}

}  // namespace onnxfuse

#endif  // ONNXFUSE_TYPES_CUH_
