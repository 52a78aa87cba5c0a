// The engine of attention on tensor cores, for f16 and bf16, which sums as floats.
//
// A warp has 16 rows.  Its fragments of Q stay in registers; those of K and V come from shared memory by ldmatrix, V's transposed;
// and the scores, as mma.sync leaves them, are the fragments of the second product once they are weights.  Rows in shared
// memory are 8 elements longer than the tile, so that the pieces of 16 bytes which ldmatrix reads at a time lie in
// different banks.

#ifndef ONNXFUSE_ATTENTION_TENSOR_CUH_
#define ONNXFUSE_ATTENTION_TENSOR_CUH_

namespace onnxfuse {

template <class T, int BM, int BN, int D, int DV> struct TensorAttention {
  using Word = u16;
  static constexpr bool takes_copies = is_ampere;
  static constexpr int rows = BM, keys = BN, size = D, columns = DV;
  static constexpr int lanes = 4, threads = BM / 16 * 32;
  static constexpr int row_count = 2, score_count = BN / 4, result_count = DV / 4, run = 2;
  static constexpr int key_pitch = D + 8, value_pitch = DV + 8;
  static_assert(BM % 16 == 0 && BN % 16 == 0 && D % 16 == 0 && DV % 16 == 0, "fragments are whole");

  struct Shared {
    SharedArray<u16, BN * key_pitch> keys;
    SharedArray<u16, BN * value_pitch> values;
  };

  u32 queries[D / 16][4];

  static ONNXFUSE_DEVICE int lane() { return static_cast<int>(threadIdx.x) % 32; }
  static ONNXFUSE_DEVICE int row(int i) { return static_cast<int>(threadIdx.x) / 32 * 16 + lane() / 4 + i * 8; }
  static ONNXFUSE_DEVICE int key(int j) { return j / 2 * 8 + lane() % 4 * 2 + j % 2; }
  static ONNXFUSE_DEVICE int column(int j) { return key(j); }

  template <int V>
  ONNXFUSE_DEVICE void take_queries(Shared&, const AttentionOperands<T>& in, const AttentionShape& shape,
                                    const AttentionPart& part) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const AttentionRow own(shape, part, part.row + row(i));
      const i64 base = own.of_queries(shape, part.batch);
#pragma unroll
      for (int d = 0; d < D / 16; ++d) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int first = d * 16 + half * 8 + lane() % 4 * 2;
          u32 word = 0;
          if constexpr (V > 1) {
            if (own.inside && first < shape.size) word = load_pack<2>(in.q, base + first).at[0].words[0];
          } else {
            if (own.inside && first < shape.size) word = load(in.q, base + first).bits;
            if (own.inside && first + 1 < shape.size) word |= static_cast<u32>(load(in.q, base + first + 1).bits) << 16;
          }
          queries[d][half * 2 + i] = word;
        }
      }
    }
  }

  ONNXFUSE_DEVICE void score(const Shared& shared, f32 (&scores)[row_count][score_count]) const {
#pragma unroll
    for (int d = 0; d < D / 16; ++d) {
#pragma unroll
      for (int n = 0; n < BN / 16; ++n) {
        u32 b[4];
        const int from = (n * 16 + lane() / 16 * 8 + lane() % 8) * key_pitch + d * 16 + lane() / 8 % 2 * 8;
        load_matrices<false>(shared.keys.template at<8>(from), b);
        multiply(queries[d], b[0], b[1], scores, n * 4);
        multiply(queries[d], b[2], b[3], scores, n * 4 + 2);
      }
    }
  }

  ONNXFUSE_DEVICE void accumulate(const Shared& shared, const f32 (&weights)[row_count][score_count],
                                  f32 (&results)[row_count][result_count]) const {
#pragma unroll
    for (int n = 0; n < BN / 16; ++n) {
      u32 a[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) a[e] = narrow_two<T>(weights[e % 2][n * 4 + e / 2 * 2], weights[e % 2][n * 4 + e / 2 * 2 + 1]);
#pragma unroll
      for (int c = 0; c < DV / 16; ++c) {
        u32 b[4];
        load_matrices<true>(shared.values.template at<8>((n * 16 + lane() % 16) * value_pitch + c * 16 + lane() / 16 * 8), b);
        multiply(a, b[0], b[1], results, c * 4);
        multiply(a, b[2], b[3], results, c * 4 + 2);
      }
    }
  }

 private:
  // Adds a product to the 16 x 8 sums of which a lane has two neighbours of two rows, from place j on.
  template <int N> static ONNXFUSE_DEVICE void multiply(const u32 (&a)[4], u32 b0, u32 b1, f32 (&sums)[2][N], int j) {
    f32 c[4] = {sums[0][j], sums[0][j + 1], sums[1][j], sums[1][j + 1]};
    multiply_fragments<T>(a, b0, b1, c);
    sums[0][j] = c[0];
    sums[0][j + 1] = c[1];
    sums[1][j] = c[2];
    sums[1][j + 1] = c[3];
  }
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_ATTENTION_TENSOR_CUH_
