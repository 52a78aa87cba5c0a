// Arrays in shared memory.

#ifndef ONNXFUSE_SHARED_CUH_
#define ONNXFUSE_SHARED_CUH_

// Called for every place in shared memory, and for every access through it; nothing on a device.
#ifndef ONNXFUSE_CHECK_SHARED
#define ONNXFUSE_CHECK_SHARED(index, count, size, alignment)
#define ONNXFUSE_TRACE_SHARED(address, bytes, is_store)
#endif

namespace onnxfuse {

// An array in shared memory, from address 0 of 16 bytes on.
template <class T, int Size> struct alignas(16) SharedArray {
  T elements[Size];

  ONNXFUSE_DEVICE T get(int index) const {
    ONNXFUSE_CHECK_SHARED(index, 1, Size, 1);
    ONNXFUSE_TRACE_SHARED(elements + index, sizeof(T), false);
    return elements[index];
  }
  ONNXFUSE_DEVICE void put(int index, T element) {
    ONNXFUSE_CHECK_SHARED(index, 1, Size, 1);
    ONNXFUSE_TRACE_SHARED(elements + index, sizeof(T), true);
    elements[index] = element;
  }
  // The address of Count neighbours, to read (const) or to copy to; `first` is a multiple of Count.
  template <int Count> ONNXFUSE_DEVICE const T* at(int first) const {
    ONNXFUSE_CHECK_SHARED(first, Count, Size, Count);
    ONNXFUSE_TRACE_SHARED(elements + first, Count * sizeof(T), false);
    return elements + first;
  }
  template <int Count> ONNXFUSE_DEVICE T* at(int first) {
    ONNXFUSE_CHECK_SHARED(first, Count, Size, Count);
    return elements + first;
  }
  // V neighbours; `first` is a multiple of V, or of what 16 bytes hold.
  template <int V> ONNXFUSE_DEVICE Pack<T, V> get_pack(int first) const {
    using P = Pack<T, V>;
    ONNXFUSE_CHECK_SHARED(first, V, Size, P::piece_bytes / static_cast<int>(sizeof(T)));
    ONNXFUSE_TRACE_SHARED(elements + first, V * sizeof(T), false);
    const auto* pieces = reinterpret_cast<const typename P::Piece*>(elements + first);
    P pack;
#pragma unroll
    for (int p = 0; p < P::pieces; ++p) pack.at[p] = pieces[p];
    return pack;
  }
  template <int V> ONNXFUSE_DEVICE void put_pack(int first, const Pack<T, V>& pack) {
    using P = Pack<T, V>;
    ONNXFUSE_CHECK_SHARED(first, V, Size, P::piece_bytes / static_cast<int>(sizeof(T)));
    ONNXFUSE_TRACE_SHARED(elements + first, V * sizeof(T), true);
    auto* pieces = reinterpret_cast<typename P::Piece*>(elements + first);
#pragma unroll
    for (int p = 0; p < P::pieces; ++p) pieces[p] = pack.at[p];
  }
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_SHARED_CUH_
