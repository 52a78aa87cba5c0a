// The engine of a matrix product without tensor cores: floats, exact but for the order of the sums.
//
// A thread computes TM x TN results in groups of 4 rows and `chunk` columns, so that it reads shared memory by 16 bytes
// and neighbouring threads read neighbouring bytes; 8 x 8 results take 4 such reads for 64 multiply-adds.  Weights lie
// transposed, in rows that are 4 floats longer than the tile, so that storing them does not hit the same bank 8 times.

#ifndef ONNXFUSE_CONV_SIMT_CUH_
#define ONNXFUSE_CONV_SIMT_CUH_

namespace onnxfuse {

template <class T, int BM, int BN, int BK, int TM, int TN, int V> struct SimtEngine {
  static constexpr bool takes_copies = false;
  static constexpr int depth = BK;
  static constexpr int threads = BM / TM * (BN / TN);
  static constexpr int chunk = V > 4 ? V : 4;
  static constexpr int columns = BN / TN;  // of threads
  static constexpr int pitch = BM + 4;
  static_assert(TM % 4 == 0 && TN % chunk == 0, "a thread reads whole groups");

  struct Stage {
    SharedArray<f32, BK * pitch> weights;
    SharedArray<f32, BK * BN> inputs;
  };
  template <int Stages> struct Shared {
    Stage stages[Stages];
  };

  f32 sums[TM][TN] = {};

  template <int A> static ONNXFUSE_DEVICE void put_weights(Stage& stage, int m, int k, const Pack<T, A>& pack) {
#pragma unroll
    for (int i = 0; i < A; ++i) stage.weights.put((k + i) * pitch + m, widen(pack.get(i)));
  }

  template <int B> static ONNXFUSE_DEVICE void put_inputs(Stage& stage, int k, int column, const Pack<T, B>& pack) {
    f32 values[B];
#pragma unroll
    for (int i = 0; i < B; ++i) values[i] = widen(pack.get(i));
    stage.inputs.template put_pack<B>(k * BN + column, narrow_pack<f32>(values));
  }

  static ONNXFUSE_DEVICE int row_of(int i) {
    return static_cast<int>(threadIdx.x) / columns * 4 + i / 4 * (BM / TM * 4) + i % 4;
  }
  static ONNXFUSE_DEVICE int column_of(int j) {
    return static_cast<int>(threadIdx.x) % columns * chunk + j / chunk * (columns * chunk) + j % chunk;
  }

  ONNXFUSE_DEVICE void multiply(const Stage& stage) {
#pragma unroll
    for (int k = 0; k < BK; ++k) {
      f32 a[TM], b[TN];
#pragma unroll
      for (int i = 0; i < TM; i += 4) {
        const Pack<f32, 4> pack = stage.weights.template get_pack<4>(k * pitch + row_of(i));
#pragma unroll
        for (int e = 0; e < 4; ++e) a[i + e] = pack.get(e);
      }
#pragma unroll
      for (int j = 0; j < TN; j += 4) {
        const Pack<f32, 4> pack = stage.inputs.template get_pack<4>(k * BN + column_of(j));
#pragma unroll
        for (int e = 0; e < 4; ++e) b[j + e] = pack.get(e);
      }
#pragma unroll
      for (int i = 0; i < TM; ++i) {
#pragma unroll
        for (int j = 0; j < TN; ++j) sums[i][j] = fmaf(a[i], b[j], sums[i][j]);
      }
    }
  }

  // put(m, column, values) for every V neighbouring results.
  template <class Shared, class Put> ONNXFUSE_DEVICE void finish(Shared&, const Put& put) const {
#pragma unroll
    for (int j = 0; j < TN; j += V) {
#pragma unroll
      for (int i = 0; i < TM; ++i) {
        f32 values[V];
#pragma unroll
        for (int e = 0; e < V; ++e) values[e] = sums[i][j + e];
        put(row_of(i), column_of(j), values);
      }
    }
  }
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_CONV_SIMT_CUH_
