// A matrix product as a convolution of single positions, the channels last: out[r, m] = sum over k of x[r, k] · w[k, m].
//
// A row r is a position in an image (image · positions + position), and lies in one piece of `in_channels` elements, that
// of the result in one of `out_channels`.  The weights lie by k, [K, M], where the convolution is transposed, else by m,
// [M, K].  The loop over k, the engines and the sums in parts are those of conv_gemm.cuh, to whose engines the rows are
// what the weights are to a convolution with the channels first, so that a thread has V neighbouring channels.

#ifndef ONNXFUSE_MULTIPLY_ROWS_CUH_
#define ONNXFUSE_MULTIPLY_ROWS_CUH_

namespace onnxfuse {

// Rows x Columns of a matrix, in vectors along the columns, as the threads of a block share them.  A thread has the same
// columns of every row that is its own.
template <class T, int Rows, int Columns, int Vector, int Block> struct ThreadTile {
  static constexpr int vector = Vector;
  static constexpr int columns = Columns / Vector;
  static constexpr int rows = Block / columns;  // of threads
  static constexpr int count = (Rows + rows - 1) / rows;
  static_assert(Block % columns == 0, "threads share the columns evenly");

  Pack<T, Vector> items[count];

  static ONNXFUSE_DEVICE int row(int item) { return static_cast<int>(threadIdx.x) / columns + item * rows; }
  static ONNXFUSE_DEVICE int column() { return static_cast<int>(threadIdx.x) % columns * Vector; }
  static ONNXFUSE_DEVICE bool has(int item) { return Rows % rows == 0 || row(item) < Rows; }

  // What has(item) is zeros where is_inside(row, column) is false, and else lies at place(row, column).
  template <class Inside, class At> ONNXFUSE_DEVICE void load(const T* from, const Inside& is_inside, const At& place) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      items[i] = splat<T, Vector>(from_bits<T>(0));
      if (has(i) && is_inside(row(i), column())) items[i] = load_pack<Vector>(from, place(row(i), column()));
    }
  }

  // Copies it straight to to(row, column) in shared memory.
  template <class Inside, class At, class To>
  static ONNXFUSE_DEVICE void copy(const T* from, const Inside& is_inside, const At& place, const To& to) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (!has(i)) continue;
      const bool inside = is_inside(row(i), column());
      copy_async<Vector>(to(row(i), column()), from, inside ? place(row(i), column()) : 0, inside);
    }
  }

  // put(row, column, pack) for everything loaded.
  template <class Put> ONNXFUSE_DEVICE void store(const Put& put) const {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (has(i)) put(row(i), column(), items[i]);
    }
  }
};

// B x BK of a matrix whose rows of Depth elements follow one another, in vectors along them.
template <class T, u32 Depth, int B, int BK, int Block, int V>
struct RowTile : ThreadTile<T, B, BK, Depth % V == 0 && BK % V == 0 ? V : 1, Block> {
  using Share = typename RowTile::ThreadTile;

  // `first` is the tile's first row, of `all`.
  template <class Index> ONNXFUSE_DEVICE void load(const T* from, Index all, Index first, u32 first_k) {
    Share::load(from, inside_of(all, first, first_k), place_of(first, first_k));
  }

  template <class Index, class To>
  static ONNXFUSE_DEVICE void copy(const T* from, Index all, Index first, u32 first_k, const To& to) {
    Share::copy(from, inside_of(all, first, first_k), place_of(first, first_k), to);
  }

 private:
  template <class Index> static ONNXFUSE_DEVICE auto inside_of(Index all, Index first, u32 first_k) {
    return [=](int row, int k) { return first + row < all && first_k + k < Depth; };
  }
  template <class Index> static ONNXFUSE_DEVICE auto place_of(Index first, u32 first_k) {
    return [=](int row, int k) -> Index { return (first + row) * Depth + (first_k + k); };
  }
};

// BK x BN of weights [Depth, Outs], in vectors along Outs.
template <class T, u32 Depth, u32 Outs, int BN, int BK, int Block, int V>
struct ColumnTile : ThreadTile<T, BK, BN, Outs % V == 0 ? V : 1, Block> {
  using Share = typename ColumnTile::ThreadTile;

  // `first` is the tile's first column.
  ONNXFUSE_DEVICE void load(const T* from, u32 first, u32 first_k) {
    Share::load(from, inside_of(first, first_k), place_of(first, first_k));
  }

  template <class To> static ONNXFUSE_DEVICE void copy(const T* from, u32 first, u32 first_k, const To& to) {
    Share::copy(from, inside_of(first, first_k), place_of(first, first_k), to);
  }

 private:
  static ONNXFUSE_DEVICE auto inside_of(u32 first, u32 first_k) {
    return [=](int k, int column) { return first_k + k < Depth && first + column < Outs; };
  }
  static ONNXFUSE_DEVICE auto place_of(u32 first, u32 first_k) {
    return [=](int k, int column) { return (first_k + k) * Outs + first + column; };
  }
};

template <bool First, class A, class B> struct EitherTile { using type = A; };
template <class A, class B> struct EitherTile<false, A, B> { using type = B; };

// The tiles of both matrices for one block: what multiply_tiles needs.
template <class Spec, class Engine, int BM, int BN, int V, class Index, class Head> struct ProductOperands {
  using T = typename Spec::T;
  static constexpr int BK = Engine::depth;
  static constexpr u32 depth = Spec::in_channels, outs = Spec::out_channels;
  static constexpr bool by_columns = Spec::transposed;
  using Rows = RowTile<T, depth, BM, BK, Engine::threads, V>;
  using Columns = ColumnTile<T, depth, outs, BN, BK, Engine::threads, V>;
  using WeightRows = RowTile<T, depth, BN, BK, Engine::threads, V>;
  // Copies are of 4 bytes or more, and of weights that lie as shared memory has them.
  static constexpr bool copies = is_ampere && Engine::takes_copies && !Head::exists && by_columns && V > 1 &&
                                 Rows::vector == V && Columns::vector == V;

  const T* x;
  const T* w;
  const ConvShape<Index>& shape;
  const Head& head;
  Index all;  // rows
  Index first_row;
  u32 first_column;
  Rows rows;
  typename EitherTile<by_columns, Columns, WeightRows>::type weights;

  template <class Stage> ONNXFUSE_DEVICE void copy(Stage& stage, u32 tile) {
    Rows::copy(x, all, first_row, tile * BK,
               [&](int row, int k) { return Engine::template weights_at<Rows::vector>(stage, row, k); });
    Columns::copy(w, first_column, tile * BK,
                  [&](int k, int column) { return Engine::template inputs_at<Columns::vector>(stage, k, column); });
  }

  ONNXFUSE_DEVICE void load(u32 tile) {
    rows.load(x, all, first_row, tile * BK);
    if constexpr (by_columns) weights.load(w, first_column, tile * BK);
    else weights.load(w, outs, first_column, tile * BK);
  }

  template <class Stage> ONNXFUSE_DEVICE void store(Stage& stage, u32 tile) {
    rows.store([&](int row, int k, const auto& pack) {
      Engine::put_weights(stage, row, k, prepared(row, tile * BK + k, pack));
    });
    weights.store([&](int first, int second, const auto& pack) {
      if constexpr (by_columns) {
        Engine::put_inputs(stage, first, second, pack);
      } else {  // neighbours along k
#pragma unroll
        for (int i = 0; i < WeightRows::vector; ++i) {
          Engine::put_inputs(stage, second + i, first, splat<T, 1>(pack.get(i)));
        }
      }
    });
  }

  // Elements of X after the prologue; zeros behind the ends stay zeros.
  template <int N> ONNXFUSE_DEVICE Pack<T, N> prepared(int row, u32 k, const Pack<T, N>& pack) const {
    if constexpr (!Head::exists) {
      return pack;
    } else {
      const Index r = first_row + row;
      if (r >= all || k >= depth) return pack;
      f32 values[N];
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] = widen(pack.get(i));
      const Index image = shape.positions.quotient(r);
      head(values, image, static_cast<Index>(k), r - image * shape.positions.divisor);
      return narrow_pack<T>(values);
    }
  }
};

// Blocks that differ only in their rows follow each other: they read the same weights, which are then in the L2 cache.
template <class Spec, class Engine, int BM, int BN, int V, bool Splits, class Index, class Head, class Tail>
ONNXFUSE_DEVICE void multiply_rows(const typename Spec::T* x, const typename Spec::T* w, f32* workspace,
                                   const ConvShape<Index>& shape, const Head& head, const Tail& tail) {
  using Operands = ProductOperands<Spec, Engine, BM, BN, V, Index, Head>;
  constexpr u32 tiles_n = (Operands::outs + BN - 1) / BN;
  constexpr u32 tiles_k = (Operands::depth + Operands::BK - 1) / Operands::BK;
  constexpr int stages = stages_of<typename Engine::Stage, Operands::copies>;
  __shared__ typename Engine::template Shared<stages> shared;

  const Index all = shape.batch * shape.positions.divisor;
  const Index tiles_m = (all + BM - 1) / BM;
  const Index rest = blockIdx.x / tiles_m;
  const Index first_row = (blockIdx.x - rest * tiles_m) * BM;
  const u32 first_column = static_cast<u32>(rest % tiles_n) * BN;
  const u32 part = static_cast<u32>(rest / tiles_n);
  const TileRange range = part_of<Splits>(tiles_k, part, shape);

  Operands operands{x, w, shape, head, all, first_row, first_column, {}, {}};
  Engine engine;
  multiply_tiles<stages>(operands, engine, shared, range);
  engine.finish(shared, [&](int row, int column, const f32(&values)[V]) {
    const Index r = first_row + row;
    const u32 channel = first_column + column;
    if (r >= all || channel >= Operands::outs) return;
    if (Splits && shape.splits > 1) {
      const u64 count = static_cast<u64>(all) * Operands::outs;
      store_pack(workspace, part * count + r * Operands::outs + channel, narrow_pack<f32>(values));
    } else {
      const Index image = shape.positions.quotient(r);
      tail(values, image, static_cast<Index>(channel), r - image * shape.positions.divisor);
    }
  });
}

}  // namespace onnxfuse

#endif  // ONNXFUSE_MULTIPLY_ROWS_CUH_
