// Convolution as a matrix product: the loop over k, shared by all engines, and sums in parts.
//
// A block computes BM channels by BN positions.  Tiles of k are double buffered in shared memory, and the next one waits
// in registers while the current one is multiplied, so that one barrier a tile is enough and the latency of memory is
// hidden within a block as well as by its neighbours.  Blocks that differ only in their channels follow each other: they
// read the same part of X, which is then in the L2 cache.
//
// A result too small for the device is computed in `splits` parts of k, each by blocks of its own, which write partial
// sums; sum_parts adds them in the order of k, so that the result does not depend on which block was first.

#ifndef ONNXFUSE_CONV_GEMM_CUH_
#define ONNXFUSE_CONV_GEMM_CUH_

namespace onnxfuse {

template <class Spec, class Engine, int BM, int BN, int V, bool Splits, class Index, class Head, class Tail>
ONNXFUSE_DEVICE void convolve_gemm(const typename Spec::T* x, const typename Spec::T* w, f32* workspace,
                                   const ConvShape<Index>& shape, const Head& head, const Tail& tail) {
  using Matrix = ConvMatrix<Spec>;
  constexpr int BK = Engine::depth;
  constexpr u32 tiles_m = (Matrix::outs + BM - 1) / BM;
  constexpr u32 tiles_k = (Matrix::depth + BK - 1) / BK;
  __shared__ typename Engine::Shared shared;

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

  WeightTile<Spec, BM, BK, Engine::threads> weights;
  InputTile<Spec, BN, BK, V, Engine::threads, Index> inputs(shape, group, first_column);
  Engine engine;
  const auto store = [&](typename Engine::Stage& stage, u32 tile) {
    weights.store([&](int m, int k, const auto& pack) { Engine::put_weights(stage, m, k, pack); });
    inputs.store(shape, head, group, tile * BK,
                 [&](int k, int column, const auto& pack) { Engine::put_inputs(stage, k, column, pack); });
  };
  if (begin < end) {
    weights.load(w, group, first_m, begin * BK);
    inputs.load(x, shape, begin * BK);
    store(shared.stages[0], begin);
    __syncthreads();
  }
#pragma unroll 1
  for (u32 tile = begin; tile < end; ++tile) {
    const int current = (tile - begin) & 1;
    if (tile + 1 < end) {
      weights.load(w, group, first_m, (tile + 1) * BK);
      inputs.load(x, shape, (tile + 1) * BK);
    }
    engine.multiply(shared.stages[current]);
    if (tile + 1 < end) store(shared.stages[current ^ 1], tile + 1);
    __syncthreads();
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
