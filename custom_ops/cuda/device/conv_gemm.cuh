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

template <class Spec, class Engine, class Head, int V>
constexpr bool copies_tiles = is_ampere && Engine::takes_copies && Spec::pointwise && !Head::exists && V > 1 &&
                              ConvMatrix<Spec>::depth % 8 == 0;

// Tiles that are in shared memory at a time.
constexpr int shared_bytes = 48 << 10;
template <class Stage> constexpr int stages_in_shared = shared_bytes / static_cast<int>(sizeof(Stage));
template <class Stage, bool Copies>
constexpr int stages_of = !Copies ? 2 : stages_in_shared<Stage> < 4 ? stages_in_shared<Stage> : 4;

template <class Spec, class Engine, int BM, int BN, int V, bool Splits, class Index, class Head, class Tail>
ONNXFUSE_DEVICE void convolve_gemm(const typename Spec::T* x, const typename Spec::T* w, f32* workspace,
                                   const ConvShape<Index>& shape, const Head& head, const Tail& tail) {
  using Matrix = ConvMatrix<Spec>;
  constexpr int BK = Engine::depth;
  constexpr u32 tiles_m = (Matrix::outs + BM - 1) / BM;
  constexpr u32 tiles_k = (Matrix::depth + BK - 1) / BK;
  constexpr bool copies = copies_tiles<Spec, Engine, Head, V>;
  constexpr int stages = stages_of<typename Engine::Stage, copies>;
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
  const u32 share = Splits ? (tiles_k + shape.splits - 1) / shape.splits : tiles_k;
  const u32 begin = part * share;
  const u32 end = begin + share < tiles_k ? begin + share : tiles_k;

  using Weights = WeightTile<Spec, BM, BK, Engine::threads>;
  using Inputs = InputTile<Spec, BN, BK, V, Engine::threads, Index>;
  Inputs inputs(shape, group, first_column);
  Engine engine;
  if constexpr (copies) {
    const auto copy = [&](u32 tile) {  // nothing behind the end, but a group all the same: groups are counted
      auto& stage = shared.stages[(tile - begin) % stages];
      if (tile < end) {
        Weights::copy(w, group, first_m, tile * BK,
                      [&](int m, int k) { return Engine::template weights_at<Weights::vector>(stage, m, k); });
        inputs.copy(x, shape, tile * BK,
                    [&](int k, int column) { return Engine::template inputs_at<Inputs::vector>(stage, k, column); });
      }
      commit_copies();
    };
#pragma unroll
    for (u32 ahead = 0; ahead + 1 < stages; ++ahead) copy(begin + ahead);
#pragma unroll 1
    for (u32 tile = begin; tile < end; ++tile) {
      wait_for_copies<stages - 2>();
      __syncthreads();  // all threads have copied this tile, and multiplied the one whose place is taken next
      copy(tile + stages - 1);
      engine.multiply(shared.stages[(tile - begin) % stages]);
    }
    wait_for_copies<0>();
    __syncthreads();
  } else {
    Weights weights;
    const auto load = [&](u32 tile) {
      weights.load(w, group, first_m, tile * BK);
      inputs.load(x, shape, tile * BK);
    };
    const auto store = [&](u32 tile) {
      auto& stage = shared.stages[(tile - begin) & 1];
      weights.store([&](int m, int k, const auto& pack) { Engine::put_weights(stage, m, k, pack); });
      inputs.store(shape, head, group, tile * BK,
                   [&](int k, int column, const auto& pack) { Engine::put_inputs(stage, k, column, pack); });
    };
    if (begin < end) {
      load(begin);
      store(begin);
      __syncthreads();
    }
#pragma unroll 1
    for (u32 tile = begin; tile < end; ++tile) {
      if (tile + 1 < end) load(tile + 1);
      engine.multiply(shared.stages[(tile - begin) & 1]);
      if (tile + 1 < end) store(tile + 1);
      __syncthreads();
    }
  }

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

// Adds the parts that convolve_gemm has written, V results a thread.
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
    const Index plane = shape.positions.quotient(i);
    const Index image = plane / Spec::out_channels;
    tail(sums, image, plane - image * Spec::out_channels, i - plane * shape.positions.divisor);
  }
}

}  // namespace onnxfuse

#endif  // ONNXFUSE_CONV_GEMM_CUH_
