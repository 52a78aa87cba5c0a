// A convolution as a matrix product: out[m, p] = sum over k of weights[m, k] · inputs[k, p], in each group.
//
// m is a channel of the result, p a position in an image (image · positions + position), k a channel of X and an element
// of the kernel.  The matrix of inputs is never made: its elements are read from X where the kernel meets them, zeros
// where it meets padding.  For a pointwise convolution it is X itself.
//
// This file brings tiles of both matrices to registers, from where an engine (conv_simt.cuh, conv_tensor.cuh) puts them
// into shared memory: the next tile is on its way while the current one is multiplied.

#ifndef ONNXFUSE_CONV_TILES_CUH_
#define ONNXFUSE_CONV_TILES_CUH_

namespace onnxfuse {

template <class Spec> struct ConvMatrix {
  static constexpr u32 ins = Spec::in_channels / Spec::group;   // channels of X in a group
  static constexpr u32 outs = Spec::out_channels / Spec::group;  // rows of the product
  static constexpr u32 taps = Spec::kernel_d * Spec::kernel_h * Spec::kernel_w;
  static constexpr u32 depth = ins * taps;                       // k
};

// Which channel of X and which element of the kernel a row k of the inputs is.  If the channels fill whole tiles, a tile
// has BK channels and one element of the kernel, whose place in X is then found once a tile; the tiles of all elements
// follow each other, so that the same weights and the same part of X are read from the caches.  Otherwise k counts as W
// does, the elements of the kernel first.
template <class Spec, int BK> struct ConvOrder {
  using Matrix = ConvMatrix<Spec>;
  static constexpr bool by_channels = Matrix::taps > 1 && Matrix::ins % BK == 0;

  // `first_k` is that of a tile.
  static ONNXFUSE_DEVICE u32 channel(u32 first_k, u32 row) {
    if constexpr (by_channels) return first_k / BK / Matrix::taps * BK + row;
    else return (first_k + row) / Matrix::taps;
  }
  static ONNXFUSE_DEVICE u32 tap(u32 first_k, u32 row) {
    if constexpr (by_channels) return first_k / BK % Matrix::taps;
    else return (first_k + row) % Matrix::taps;
  }
};

// BM x BK of the weights, in vectors along k where that is how they lie.  A thread has the same k of every row.
template <class Spec, int BM, int BK, int Block> struct WeightTile {
  using T = typename Spec::T;
  using Matrix = ConvMatrix<Spec>;
  using Order = ConvOrder<Spec, BK>;
  static constexpr int widest = 16 / static_cast<int>(sizeof(T));
  static constexpr bool in_order = !Spec::transposed && !Order::by_channels;
  static constexpr int vector = in_order && Matrix::depth % widest == 0 && BK % widest == 0 ? widest : 1;
  static constexpr int columns = BK / vector;
  static constexpr int rows = Block / columns;  // of threads
  static constexpr int count = (BM + rows - 1) / rows;
  static_assert(Block % columns == 0, "threads share the columns evenly");

  Pack<T, vector> items[count];

  static ONNXFUSE_DEVICE int row(int item) { return static_cast<int>(threadIdx.x) / columns + item * rows; }
  static ONNXFUSE_DEVICE int column() { return static_cast<int>(threadIdx.x) % columns * vector; }
  static ONNXFUSE_DEVICE bool is_inside(u32 first_m, u32 first_k, int item) {
    return first_m + row(item) < Matrix::outs && first_k + column() < Matrix::depth;
  }
  static ONNXFUSE_DEVICE i32 place(u32 group, u32 first_m, u32 first_k, int item) {
    return weight_index<Spec>(group, first_m + row(item), Order::channel(first_k, column()),
                              Order::tap(first_k, column()));
  }

  ONNXFUSE_DEVICE void load(const T* w, u32 group, u32 first_m, u32 first_k) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      items[i] = splat<T, vector>(from_bits<T>(0));
      if (BM % rows != 0 && row(i) >= BM) continue;
      if (is_inside(first_m, first_k, i)) items[i] = load_pack<vector>(w, place(group, first_m, first_k, i));
    }
  }

  // Copies straight to at(m, k) in shared memory.
  template <class At> static ONNXFUSE_DEVICE void copy(const T* w, u32 group, u32 first_m, u32 first_k, const At& at) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (BM % rows != 0 && row(i) >= BM) continue;
      const bool inside = is_inside(first_m, first_k, i);
      copy_async<vector>(at(row(i), column()), w, inside ? place(group, first_m, first_k, i) : 0, inside);
    }
  }

  // put(m, k, pack) for everything loaded.
  template <class Put> ONNXFUSE_DEVICE void store(const Put& put) const {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (BM % rows == 0 || row(i) < BM) put(row(i), column(), items[i]);
    }
  }
};

// BK x BN of the inputs.  A thread has the same columns of every tile: only a pointwise convolution reads V at once.
template <class Spec, int BN, int BK, int V, int Block, class Index> struct InputTile {
  using T = typename Spec::T;
  using Matrix = ConvMatrix<Spec>;
  using Order = ConvOrder<Spec, BK>;
  static constexpr int vector = Spec::pointwise ? V : 1;
  static constexpr int columns = BN / vector;
  static constexpr int rows = Block / columns;  // of threads
  static constexpr int count = (BK + rows - 1) / rows;
  static_assert(Block % columns == 0, "threads share the columns evenly");
  static_assert(count <= 32, "`loaded` has 32 bits");

  Pack<T, vector> items[count];
  u32 loaded = 0;  // a bit for each item: the others are zero
  Index image;
  Index base;  // the first element of the group's channels, or of them the one at the column's position
  i32 window_d, window_h, window_w;
  Index position;
  bool inside;

  ONNXFUSE_DEVICE InputTile(const ConvShape<Index>& shape, u32 group, Index first_column) {
    const Index column = first_column + threadIdx.x % columns * vector;
    inside = column < shape.batch * shape.positions.divisor;
    image = shape.positions.quotient(inside ? column : 0);
    position = (inside ? column : 0) - image * shape.positions.divisor;
    base = (image * Spec::in_channels + group * Matrix::ins) * in_positions(shape);
    if constexpr (!Spec::pointwise) {
      const Position<Index> at = out_position(shape, position);
      window_d = window<Spec, Spec::stride_d>(static_cast<i32>(at.d), pad_d<Spec>(shape));
      window_h = window<Spec, Spec::stride_h>(static_cast<i32>(at.h), pad_h<Spec>(shape));
      window_w = window<Spec, Spec::stride_w>(static_cast<i32>(at.w), pad_w<Spec>(shape));
    }
  }

  // Where the element of a tile's row lies in its channel of X; false if it is a zero.
  ONNXFUSE_DEVICE bool find(const ConvShape<Index>& shape, u32 first_k, u32 row, u32& channel, Index& from) const {
    if (!inside || first_k + row >= Matrix::depth) return false;
    channel = Order::channel(first_k, row);
    if constexpr (Spec::pointwise) {
      from = position;
      return true;
    } else {
      const i32 tap = Order::tap(first_k, row);
      i32 d, h, w;
      const bool found =
          meets<Spec, Spec::stride_d, Spec::dilation_d>(window_d, tap / (Spec::kernel_h * Spec::kernel_w),
                                                        static_cast<i32>(shape.in[0]), d) &&
          meets<Spec, Spec::stride_h, Spec::dilation_h>(window_h, tap / Spec::kernel_w % Spec::kernel_h,
                                                        static_cast<i32>(shape.in[1]), h) &&
          meets<Spec, Spec::stride_w, Spec::dilation_w>(window_w, tap % Spec::kernel_w,
                                                        static_cast<i32>(shape.in[2]), w);
      from = found ? (d * shape.in[1] + h) * shape.in[2] + w : 0;
      return found;
    }
  }

  ONNXFUSE_DEVICE static int row(int item) { return threadIdx.x / columns + item * rows; }

  ONNXFUSE_DEVICE void load(const T* x, const ConvShape<Index>& shape, u32 first_k) {
    loaded = 0;
#pragma unroll
    for (int i = 0; i < count; ++i) {
      u32 channel;
      Index from;
      if ((BK % rows == 0 || row(i) < BK) && find(shape, first_k, row(i), channel, from)) {
        items[i] = load_pack<vector>(x, base + channel * in_positions(shape) + from);
        loaded |= 1u << i;
      }
    }
  }

  // Copies straight to at(k, column) in shared memory.
  template <class At>
  ONNXFUSE_DEVICE void copy(const T* x, const ConvShape<Index>& shape, u32 first_k, const At& at) const {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (BK % rows != 0 && row(i) >= BK) continue;
      u32 channel = 0;
      Index from = 0;
      const bool found = find(shape, first_k, row(i), channel, from);
      copy_async<vector>(at(row(i), static_cast<int>(threadIdx.x % columns * vector)), x,
                         found ? base + channel * in_positions(shape) + from : 0, found);
    }
  }

  // put(k, column, pack) for everything loaded from first_k on, after the prologue.
  template <class Head, class Put>
  ONNXFUSE_DEVICE void store(const ConvShape<Index>& shape, const Head& head, u32 group, u32 first_k, const Put& put) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (BK % rows != 0 && row(i) >= BK) continue;
      Pack<T, vector> item = splat<T, vector>(from_bits<T>(0));
      if (loaded >> i & 1) {
        item = items[i];
        if constexpr (Head::exists) {
          u32 channel;
          Index from;
          find(shape, first_k, row(i), channel, from);
          f32 values[vector];
#pragma unroll
          for (int j = 0; j < vector; ++j) values[j] = widen(item.get(j));
          head(values, image, static_cast<Index>(group * Matrix::ins + channel), from);
          item = narrow_pack<T>(values);
        }
      }
      put(row(i), static_cast<int>(threadIdx.x % columns * vector), item);
    }
  }
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_CONV_TILES_CUH_
