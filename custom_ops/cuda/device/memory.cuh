// Loads and stores, of one element or of a Pack of V neighbours in pieces of up to 16 bytes.
//
// ONNXFUSE_CHECK(base, first, count, alignment, is_store) is called before every access.  It is nothing on a device; the
// emulation looks up what `base` points to.

#ifndef ONNXFUSE_MEMORY_CUH_
#define ONNXFUSE_MEMORY_CUH_

#ifndef ONNXFUSE_CHECK
#define ONNXFUSE_CHECK(base, first, count, alignment, is_store)
#endif

namespace onnxfuse {

// V elements as they lie in memory.  They stay in words until they are computed with, so that a thread that waits for
// several Packs needs few registers.
template <class T, int V> struct Pack {
  static constexpr int bytes = V * static_cast<int>(sizeof(T));
  static constexpr int piece_bytes = bytes < 16 ? bytes : 16;
  static constexpr int word_bytes = sizeof(T) == 8 ? 8 : bytes < 4 ? bytes : 4;
  static constexpr int pieces = bytes / piece_bytes;
  static constexpr int words = piece_bytes / word_bytes;           // in a piece
  static constexpr int elements = word_bytes / static_cast<int>(sizeof(T));  // in a word
  struct alignas(piece_bytes) Piece { Word<word_bytes> words[Pack::words]; };

  Piece at[pieces];

  ONNXFUSE_DEVICE T get(int index) const {
    const int word = index / elements;
    const int shift = 8 * static_cast<int>(sizeof(T)) * (index % elements);
    return from_bits<T>(static_cast<Word<sizeof(T)>>(at[word / words].words[word % words] >> shift));
  }
};

template <class T, int V> ONNXFUSE_DEVICE Pack<T, V> splat(T x) {
  using P = Pack<T, V>;
  Word<P::word_bytes> word = 0;
#pragma unroll
  for (int i = 0; i < P::elements; ++i) {
    word |= static_cast<Word<P::word_bytes>>(to_bits(x)) << (8 * static_cast<int>(sizeof(T)) * i);
  }
  P pack;
#pragma unroll
  for (int p = 0; p < P::pieces; ++p) {
#pragma unroll
    for (int w = 0; w < P::words; ++w) pack.at[p].words[w] = word;
  }
  return pack;
}

template <class T, int V, class C> ONNXFUSE_DEVICE Pack<T, V> narrow_pack(const C (&values)[V]) {
  using P = Pack<T, V>;
  P pack;
#pragma unroll
  for (int p = 0; p < P::pieces; ++p) {
#pragma unroll
    for (int w = 0; w < P::words; ++w) {
      const int first = (p * P::words + w) * P::elements;
      Word<P::word_bytes> word = 0;
      if constexpr (is_half<T> && P::elements == 2) {
        word = narrow_two<T>(values[first], values[first + 1]);
      } else {
#pragma unroll
        for (int i = 0; i < P::elements; ++i) {
          word |= static_cast<Word<P::word_bytes>>(to_bits(narrow<T>(values[first + i])))
                  << (8 * static_cast<int>(sizeof(T)) * i);
        }
      }
      pack.at[p].words[w] = word;
    }
  }
  return pack;
}

template <class T, class Index> ONNXFUSE_DEVICE T load(const T* base, Index index) {
  ONNXFUSE_CHECK(base, index, 1, sizeof(T), false);
  return base[index];
}

// Elements first … first + V - 1; `base + first` is aligned to the Pack's pieces.
template <int V, class T, class Index> ONNXFUSE_DEVICE Pack<T, V> load_pack(const T* base, Index first) {
  using P = Pack<T, V>;
  ONNXFUSE_CHECK(base, first, V, P::piece_bytes, false);
  const auto* pieces = reinterpret_cast<const typename P::Piece*>(base + first);
  P pack;
#pragma unroll
  for (int p = 0; p < P::pieces; ++p) pack.at[p] = pieces[p];
  return pack;
}

template <class T, class Index> ONNXFUSE_DEVICE void store(T* base, Index index, T element) {
  ONNXFUSE_CHECK(base, index, 1, sizeof(T), true);
  base[index] = element;
}

template <int V, class T, class Index> ONNXFUSE_DEVICE void store_pack(T* base, Index first, const Pack<T, V>& pack) {
  using P = Pack<T, V>;
  ONNXFUSE_CHECK(base, first, V, P::piece_bytes, true);
  auto* pieces = reinterpret_cast<typename P::Piece*>(base + first);
#pragma unroll
  for (int p = 0; p < P::pieces; ++p) pieces[p] = pack.at[p];
}

}  // namespace onnxfuse

#endif  // ONNXFUSE_MEMORY_CUH_
