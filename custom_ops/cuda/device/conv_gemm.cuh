// Convolution as a matrix product: the loop over k, shared by all engines, and sums in parts.
//
// A block computes BM channels by BN positions, in tiles of k.  Blocks that differ only in their channels follow each
// other: they read the same part of X, which is then in the L2 cache.  Tiles come to shared memory in one of two ways.
//
// Through registers: two tiles are in shared memory, and the next waits in registers while one is multiplied, so that one
// barrier a tile is enough, and a block hides the latency of memory as well as its neighbours do.  Any convolution does.
//
// By asynchronous copies: as many tiles as fit, up to 4, are under way.  These copy 4 bytes or more as they are, so that
// they are for pointwise convolutions of 16-bit elements without a prologue, in which sums are long and tiles are short.
//
// A result too small for the device is computed in `splits` parts of k, each by blocks of its own, which write partial
// sums; sum_parts adds them in the order of k, so that the result does not depend on which block was first.

#ifndef ONNXFUSE_CONV_GEMM_CUH_
#define ONNXFUSE_CONV_GEMM_CUH_

namespace onnxfuse {

// Tiles that are in shared memory at a time.
constexpr int shared_bytes = 48 << 10;
template <class Stage> constexpr int stages_in_shared = shared_bytes / static_cast<int>(sizeof(Stage));
template <class Stage, bool Copies>
constexpr int stages_of = !Copies ? 2 : stages_in_shared<Stage> < 4 ? stages_in_shared<Stage> : 4;

// The tiles of k of one part of a sum: from `begin` to before `end`.
struct TileRange {
  u32 begin, end;
};
template <bool Splits, class Index>
ONNXFUSE_DEVICE TileRange part_of(u32 tiles, u32 part, const ConvShape<Index>& shape) {
  const u32 share = Splits ? (tiles + static_cast<u32>(shape.splits) - 1) / static_cast<u32>(shape.splits) : tiles;
  const u32 begin = part * share;
  return {begin, begin + share < tiles ? begin + share : tiles};
}

// Adds the products of a range of tiles to an engine's sums.  The operands bring a tile to one of the Stages in shared
// memory: by copy(stage, tile) if they have Operands::copies, else by load(tile) and store(stage, tile).
template <int Stages, class Operands, class Engine, class Shared>
ONNXFUSE_DEVICE void multiply_tiles(Operands& operands, Engine& engine, Shared& shared, const TileRange& range) {
  const u32 begin = range.begin, end = range.end;
  if constexpr (Operands::copies) {
    const auto copy = [&](u32 tile) {  // nothing behind the end, but a group all the same: groups are counted
      if (tile < end) operands.copy(shared.stages[(tile - begin) % Stages], tile);
      commit_copies();
    };
#pragma unroll
    for (u32 ahead = 0; ahead + 1 < Stages; ++ahead) copy(begin + ahead);
#pragma unroll 1
    for (u32 tile = begin; tile < end; ++tile) {
      wait_for_copies<Stages - 2>();
      __syncthreads();  // all threads have copied this tile, and multiplied the one whose place is taken next
      copy(tile + Stages - 1);
      engine.multiply(shared.stages[(tile - begin) % Stages]);
    }
    wait_for_copies<0>();
    __syncthreads();
  } else {
    if (begin < end) {
      operands.load(begin);
      operands.store(shared.stages[0], begin);
      __syncthreads();
    }
#pragma unroll 1
    for (u32 tile = begin; tile < end; ++tile) {
      if (tile + 1 < end) operands.load(tile + 1);
      engine.multiply(shared.stages[(tile - begin) & 1]);
      if (tile + 1 < end) operands.store(shared.stages[(tile + 1 - begin) & 1], tile + 1);
      __syncthreads();
    }
  }
}

// The tiles of the weights and of X for one block.
template <class Spec, class Engine, int BM, int BN, int V, class Index, class Head> struct ConvOperands {
  using T = typename Spec::T;
  static constexpr int BK = Engine::depth;
  static constexpr bool copies = is_ampere && Engine::takes_copies && Spec::pointwise && !Head::exists && V > 1 &&
                                 ConvMatrix<Spec>::depth % 8 == 0;
  using Weights = WeightTile<Spec, BM, BK, Engine::threads>;
  using Inputs = InputTile<Spec, BN, BK, V, Engine::threads, Index>;

  const T* x;
  const T* w;
  const ConvShape<Index>& shape;
  const Head& head;
  u32 group;
  u32 first_m;
  Inputs inputs;
  Weights weights;

  ONNXFUSE_DEVICE ConvOperands(const T* x, const T* w, const ConvShape<Index>& shape, const Head& head, u32 group,
                               u32 first_m, Index first_column)
      : x(x), w(w), shape(shape), head(head), group(group), first_m(first_m), inputs(shape, group, first_column) {}

  template <class Stage> ONNXFUSE_DEVICE void copy(Stage& stage, u32 tile) {
    Weights::copy(w, group, first_m, tile * BK,
                  [&](int m, int k) { return Engine::template weights_at<Weights::vector>(stage, m, k); });
    inputs.copy(x, shape, tile * BK,
                [&](int k, int column) { return Engine::template inputs_at<Inputs::vector>(stage, k, column); });
  }

  ONNXFUSE_DEVICE void load(u32 tile) {
    weights.load(w, group, first_m, tile * BK);
    inputs.load(x, shape, tile * BK);
  }

  template <class Stage> ONNXFUSE_DEVICE void store(Stage& stage, u32 tile) {
    weights.store([&](int m, int k, const auto& pack) { Engine::put_weights(stage, m, k, pack); });
    inputs.store(shape, head, group, tile * BK,
                 [&](int k, int column, const auto& pack) { Engine::put_inputs(stage, k, column, pack); });
  }
};

template <class Spec, class Engine, int BM, int BN, int V, bool Splits, class Index, class Head, class Tail>
ONNXFUSE_DEVICE void convolve_gemm(const typename Spec::T* x, const typename Spec::T* w, f32* workspace,
                                   const ConvShape<Index>& shape, const Head& head, const Tail& tail) {
  using Matrix = ConvMatrix<Spec>;
  using Operands = ConvOperands<Spec, Engine, BM, BN, V, Index, Head>;
  constexpr u32 tiles_m = (Matrix::outs + BM - 1) / BM;
  constexpr u32 tiles_k = (Matrix::depth + Operands::BK - 1) / Operands::BK;
  constexpr int stages = stages_of<typename Engine::Stage, Operands::copies>;
  __shared__ typename Engine::template Shared<stages> shared;

  const Index all = shape.batch * shape.positions.divisor;
  const Index tiles_n = (all + BN - 1) / BN;
  Index rest = blockIdx.x;
  const u32 first_m = rest % tiles_m * BM;
  rest /= tiles_m;
  const Index first_column = rest % tiles_n * BN;
  rest /= tiles_n;
  const u32 group = rest % Spec::group;
  const u32 part = rest / Spec::group;
  const TileRange range = part_of<Splits>(tiles_k, part, shape);

  Operands operands(x, w, shape, head, group, first_m, first_column);
  Engine engine;
  multiply_tiles<stages>(operands, engine, shared, range);
  engine.finish(shared, [&](int row, int column, const f32(&values)[V]) {
    const u32 m = first_m + row;
    const Index p = first_column + column;
    if (m >= Matrix::outs || p >= all) return;
    const Index image = shape.positions.quotient(p);
    const Index position = p - image * shape.positions.divisor;
    const Index channel = group * Matrix::outs + m;
    if (Splits && shape.splits > 1) {
      const u64 count = static_cast<u64>(all) * Spec::out_channels;
      const Index plane = image * Spec::out_channels + channel;
      store_pack(workspace, part * count + plane * shape.positions.divisor + position, narrow_pack<f32>(values));
    } else {
      tail(values, image, channel, position);
    }
  });
}

// Adds the parts that convolve_gemm or multiply_rows has written, V results a thread.
template <class Spec, int V, class Index, class Tail>
ONNXFUSE_DEVICE void sum_parts(const f32* workspace, const ConvShape<Index>& shape, const Tail& tail) {
  const Index count = shape.batch * Spec::out_channels * shape.positions.divisor;
  const Index step = gridDim.x * blockDim.x * V;
  for (Index i = (blockIdx.x * blockDim.x + threadIdx.x) * V; i < count; i += step) {
    f32 sums[V] = {};
    for (Index part = 0; part < shape.splits; ++part) {
      const Pack<f32, V> pack = load_pack<V>(workspace, part * static_cast<u64>(count) + i);
#pragma unroll
      for (int j = 0; j < V; ++j) sums[j] += pack.get(j);
    }
    if constexpr (Spec::channels_last) {
      const Index row = i / Spec::out_channels;
      const Index image = shape.positions.quotient(row);
      tail(sums, image, i - row * Spec::out_channels, row - image * shape.positions.divisor);
    } else {
      const Index plane = shape.positions.quotient(i);
      const Index image = plane / Spec::out_channels;
      tail(sums, image, plane - image * Spec::out_channels, i - plane * shape.positions.divisor);
    }
  }
}

}  // namespace onnxfuse

#endif  // ONNXFUSE_CONV_GEMM_CUH_
