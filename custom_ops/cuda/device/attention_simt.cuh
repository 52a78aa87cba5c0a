// The engine of attention without tensor cores: floats, exact but for the order of the sums.
//
// 16 threads share a row, of which each has every 16th score; TM rows a thread.  Rows of Q, K and V lie in shared memory, 4
// floats longer than the tile, so that the 16 bytes which neighbouring threads read of as many keys lie in different banks.
// Weights go through shared memory from the threads that have a row's scores to those that have its columns: the same warp.

#ifndef ONNXFUSE_ATTENTION_SIMT_CUH_
#define ONNXFUSE_ATTENTION_SIMT_CUH_

namespace onnxfuse {

template <class T, int BM, int BN, int D, int DV, int TM> struct SimtAttention {
  using Word = f32;
  static constexpr bool takes_copies = is_ampere && is_same<T, f32>;  // others are widened on their way
  static constexpr int rows = BM, keys = BN, size = D, columns = DV;
  static constexpr int lanes = 16, threads = BM / TM * lanes;
  static constexpr int row_count = TM, score_count = BN / lanes, result_count = DV / lanes;
  static constexpr int run = result_count % 4 == 0 ? 4 : result_count % 2 == 0 ? 2 : 1;  // neighbouring columns
  static constexpr int key_pitch = D + 4, value_pitch = DV + 4, weight_pitch = BN + 4;
  static_assert(BN % lanes == 0 && D % 16 == 0 && DV % 16 == 0 && threads % 32 == 0, "a thread has whole groups");

  struct Shared {
    SharedArray<f32, BM * key_pitch> queries;
    SharedArray<f32, BN * key_pitch> keys;
    SharedArray<f32, BN * value_pitch> values;
    SharedArray<f32, BM * weight_pitch> weights;
  };

  static ONNXFUSE_DEVICE int lane() { return static_cast<int>(threadIdx.x) % lanes; }
  static ONNXFUSE_DEVICE int row(int i) { return static_cast<int>(threadIdx.x) / lanes * TM + i; }
  static ONNXFUSE_DEVICE int key(int j) { return lane() + j * lanes; }
  static ONNXFUSE_DEVICE int column(int j) { return (j / run * lanes + lane()) * run + j % run; }

  template <int V>
  ONNXFUSE_DEVICE void take_queries(Shared& shared, const AttentionOperands<T>& in, const AttentionShape& shape,
                                    const AttentionPart& part) {
#pragma unroll 1
    for (int group = threadIdx.x; group < BM * D / V; group += threads) {
      const int r = group / (D / V), first = group % (D / V) * V;
      const AttentionRow row(shape, part, part.row + r);
      f32 values[V] = {};
      if (row.inside && first < shape.size) {
        const Pack<T, V> pack = load_pack<V>(in.q, row.of_queries(shape, part.batch) + first);
#pragma unroll
        for (int e = 0; e < V; ++e) values[e] = widen(pack.get(e));
      }
      shared.queries.template put_pack<V>(r * key_pitch + first, narrow_pack<f32>(values));
    }
  }

  ONNXFUSE_DEVICE void score(const Shared& shared, f32 (&scores)[row_count][score_count]) const {
#pragma unroll 4
    for (int d = 0; d < D; d += 4) {
      Pack<f32, 4> q[TM], k[score_count];
#pragma unroll
      for (int i = 0; i < TM; ++i) q[i] = shared.queries.template get_pack<4>(row(i) * key_pitch + d);
#pragma unroll
      for (int j = 0; j < score_count; ++j) k[j] = shared.keys.template get_pack<4>(key(j) * key_pitch + d);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int i = 0; i < TM; ++i) {
#pragma unroll
          for (int j = 0; j < score_count; ++j) scores[i][j] = ::fmaf(q[i].get(e), k[j].get(e), scores[i][j]);
        }
      }
    }
  }

  ONNXFUSE_DEVICE void accumulate(Shared& shared, const f32 (&weights)[row_count][score_count],
                                  f32 (&results)[row_count][result_count]) const {
    __syncwarp();  // the weights before have been read
#pragma unroll
    for (int i = 0; i < TM; ++i) {
#pragma unroll
      for (int j = 0; j < score_count; ++j) shared.weights.put(row(i) * weight_pitch + key(j), weights[i][j]);
    }
    __syncwarp();
#pragma unroll 2
    for (int n = 0; n < BN; n += 4) {
      Pack<f32, 4> w[TM];
#pragma unroll
      for (int i = 0; i < TM; ++i) w[i] = shared.weights.template get_pack<4>(row(i) * weight_pitch + n);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
#pragma unroll
        for (int j = 0; j < result_count; j += run) {
          const Pack<f32, run> v = shared.values.template get_pack<run>((n + e) * value_pitch + column(j));
#pragma unroll
          for (int i = 0; i < TM; ++i) {
#pragma unroll
            for (int c = 0; c < run; ++c) results[i][j + c] = ::fmaf(w[i].get(e), v.get(c), results[i][j + c]);
          }
        }
      }
    }
  }
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_ATTENTION_SIMT_CUH_
