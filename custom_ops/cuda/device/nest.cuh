// Reductions along rows and columns: what threads do with each other's results.
//
// Nothing here depends on which thread comes first: every result is combined in an order that the shape, the kernel and
// the number of blocks that share a row give.

#ifndef ONNXFUSE_NEST_CUH_
#define ONNXFUSE_NEST_CUH_

namespace onnxfuse {

// An element of 4 bits.  Two lie in a byte, the first in its low half; indices count elements, and a pointer to one is to
// the byte that it is in.
struct nibble { u8 bits; };

ONNXFUSE_DEVICE u8 widen(nibble x) { return x.bits; }

// V of them, in words as they lie in memory; a single one is by itself.
template <int V> struct Pack<nibble, V> {
  static constexpr int bytes = V < 2 ? 1 : V / 2;
  static constexpr int word_bytes = bytes < 4 ? bytes : 4;
  static constexpr int elements = 2 * word_bytes;  // in a word
  static constexpr int words = bytes / word_bytes;
  struct alignas(bytes) Piece { Word<word_bytes> words[Pack::words]; };

  Piece at;

  ONNXFUSE_DEVICE nibble get(int index) const {
    return nibble{static_cast<u8>(at.words[index / elements] >> (4 * (index % elements)) & 15)};
  }
};

template <class Index> ONNXFUSE_DEVICE nibble load(const nibble* base, Index index) {
  const u8 both = load(reinterpret_cast<const u8*>(base), index / 2);
  return nibble{static_cast<u8>(both >> (4 * static_cast<u32>(index % 2)) & 15)};
}

// Elements first … first + V - 1, of which `first` is a multiple of V, and its byte is aligned to so many bytes.
template <int V, class Index> ONNXFUSE_DEVICE Pack<nibble, V> load_pack(const nibble* base, Index first) {
  using P = Pack<nibble, V>;
  static_assert(P::bytes <= 16, "more than one access has");
  P pack;
  if constexpr (V == 1) {
    pack.at.words[0] = load(base, first).bits;
  } else {
    ONNXFUSE_CHECK(reinterpret_cast<const u8*>(base), first / 2, P::bytes, P::bytes, false);
    pack.at = *reinterpret_cast<const typename P::Piece*>(reinterpret_cast<const u8*>(base) + first / 2);
  }
  return pack;
}

template <int V> ONNXFUSE_DEVICE Pack<nibble, V> splat_nibble(nibble x) {
  using P = Pack<nibble, V>;
  P pack;
#pragma unroll
  for (int w = 0; w < P::words; ++w) pack.at.words[w] = static_cast<Word<P::word_bytes>>(0x11111111u * x.bits);
  return pack;
}

// The dimensions of a row, the innermost first, and behind them those of the rows.
template <class Index> struct NestSpace {
  u32 row_rank;
  u32 rank;
  Divider<Index> dims[max_rank];

  ONNXFUSE_DEVICE Index take(u32 dim, Index& rest) const { return take_coordinate(dims[dim], rest); }
};

// Where an operand's first element is, and how many it advances for a step along each dimension of the space.
template <class Index> struct NestSteps {
  Index offset;
  Index step[max_rank];
};

// A tensor of which an operand has the rows that another one names: how many there are, and the step between them.
template <class Index> struct NestTable {
  Index rows;
  Index step;

  // Whether there is the row of this number, from the end if it is negative; then `at` is moved there.
  ONNXFUSE_DEVICE bool find(i64 number, Index& at) const {
    const i64 row = number < 0 ? number + static_cast<i64>(rows) : number;
    const bool is_there = row >= 0 && row < static_cast<i64>(rows);
    if (is_there) at += static_cast<Index>(row) * step;
    return is_there;
  }
};

// The most negative and the largest value of a type.
template <class T> ONNXFUSE_DEVICE T lowest() {
  if constexpr (is_same<T, f32>) return __uint_as_float(0xff800000u);
  else if constexpr (is_same<T, f64>) return __longlong_as_double(static_cast<i64>(0xfff0000000000000ull));
  else if constexpr (is_signed<T>) return static_cast<T>(Word<sizeof(T)>(1) << (8 * sizeof(T) - 1));
  else return T(0);
}
template <class T> ONNXFUSE_DEVICE T highest() {
  if constexpr (is_float<T>) return -lowest<T>();
  else return static_cast<T>(~static_cast<Word<sizeof(T)>>(lowest<T>()));
}

// What joins two partial results, and what it gives of none: the columns of the table of onnxfuse/program/ops.py.
struct Add {
  template <class T> static ONNXFUSE_DEVICE T join(T a, T b) { return add(a, b); }
  template <class T> static ONNXFUSE_DEVICE T identity() { return T(0); }
};
struct Mul {
  template <class T> static ONNXFUSE_DEVICE T join(T a, T b) { return mul(a, b); }
  template <class T> static ONNXFUSE_DEVICE T identity() { return T(1); }
};
struct Max {
  template <class T> static ONNXFUSE_DEVICE T join(T a, T b) { return max(a, b); }
  template <class T> static ONNXFUSE_DEVICE T identity() { return lowest<T>(); }
};
struct Min {
  template <class T> static ONNXFUSE_DEVICE T join(T a, T b) { return min(a, b); }
  template <class T> static ONNXFUSE_DEVICE T identity() { return highest<T>(); }
};

template <class Op, class T, int N> ONNXFUSE_DEVICE void clear(T (&values)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = Op::template identity<T>();
}

// The values of one thread, joined in pairs; N is a power of two.
template <class Op, class T, int N> ONNXFUSE_DEVICE T join_all(const T (&values)[N]) {
  T joined[N];
#pragma unroll
  for (int i = 0; i < N; ++i) joined[i] = values[i];
#pragma unroll
  for (int half = N / 2; half > 0; half /= 2) {
#pragma unroll
    for (int i = 0; i < half; ++i) joined[i] = Op::join(joined[i], joined[i + half]);
  }
  return joined[0];
}

// The value of the lane whose number differs in these bits.
template <class T> ONNXFUSE_DEVICE T exchange(T x, int bits) {
  if constexpr (sizeof(T) < 4) return static_cast<T>(__shfl_xor_sync(0xffffffffu, static_cast<i32>(x), bits));
  else return __shfl_xor_sync(0xffffffffu, x, bits);
}

// The values of Lanes neighbours in a warp, all of which get the result.
template <class Op, int Lanes, class T> ONNXFUSE_DEVICE T join_lanes(T x) {
#pragma unroll
  for (int bits = Lanes / 2; bits > 0; bits /= 2) x = Op::join(x, exchange(x, bits));
  return x;
}

// The values of the warps of a block: each gives its own, and after a barrier takes the result.
template <class T, int Warps> ONNXFUSE_DEVICE void give_warp(SharedArray<T, Warps>& parts, T x) {
  if (threadIdx.x % 32 == 0) parts.put(threadIdx.x / 32, x);
}
template <class Op, class T, int Warps> ONNXFUSE_DEVICE T take_warps(const SharedArray<T, Warps>& parts) {
  const int lane = threadIdx.x % 32;
  return join_lanes<Op, Warps>(parts.get(lane % Warps));
}

// The values of Threads threads that share columns, 32 threads apart; each has those of V columns.
template <class T, int V, int Size> ONNXFUSE_DEVICE void give_columns(SharedArray<T, Size>& parts, const T (&values)[V]) {
#pragma unroll
  for (int j = 0; j < V; ++j) parts.put((threadIdx.x / 32 * V + j) * 32 + threadIdx.x % 32, values[j]);
}
template <class Op, int Threads, class T, int V, int Size>
ONNXFUSE_DEVICE void take_columns(const SharedArray<T, Size>& parts, T (&values)[V]) {
#pragma unroll
  for (int j = 0; j < V; ++j) values[j] = parts.get(j * 32 + threadIdx.x % 32);
  for (int t = 1; t < Threads; ++t) {
#pragma unroll
    for (int j = 0; j < V; ++j) values[j] = Op::join(values[j], parts.get((t * V + j) * 32 + threadIdx.x % 32));
  }
}

}  // namespace onnxfuse

#endif  // ONNXFUSE_NEST_CUH_
