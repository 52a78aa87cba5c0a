// The engine of a matrix product on tensor cores: f16 and bf16, summed as floats.
//
// A warp computes WM x WN results by mma.sync.m16n8k16; compute capability 7.5 has only f16 and half the depth, so that
// bf16 runs on SimtEngine there.  ldmatrix brings the fragments of 16 x 16 elements: the weights as they lie, rows of k;
// the inputs transposed, since theirs are rows of positions.  Both kinds of rows are 8 elements longer than the tile, so
// that the eight rows of 16 bytes that ldmatrix reads at a time lie in different banks.
//
// The results of a warp go through shared memory, 16 rows at a time, so that the epilogue has V neighbours a thread.

#ifndef ONNXFUSE_CONV_TENSOR_CUH_
#define ONNXFUSE_CONV_TENSOR_CUH_

namespace onnxfuse {

// Four 8 x 8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8.  Each lane gets elements
// 2 · (lane % 4) and the next of row lane / 4 of every matrix, or of its transpose.
template <bool Transposed> ONNXFUSE_DEVICE void load_matrices(const u16* row, u32 (&words)[4]) {
#ifdef ONNXFUSE_EMULATED
  onnxfuse_emulation_ldmatrix(row, words, Transposed);
#elif defined(__CUDA_ARCH__)
  const u32 address = static_cast<u32>(__cvta_generic_to_shared(row));
  if constexpr (Transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
  }
#endif
}

// c += a · b for fragments of 16 x 16, 16 x 8 and 16 x 8 elements.
template <class T>
ONNXFUSE_DEVICE void multiply_fragments(const u32 (&a)[4], u32 b0, u32 b1, f32 (&c)[4]) {
#ifdef ONNXFUSE_EMULATED
  const u32 b[2] = {b0, b1};
  onnxfuse_emulation_mma(a, b, c, [](u16 bits) { return widen(T{bits}); });
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (is_same<T, f16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#elif defined(__CUDA_ARCH__)
  static_assert(is_same<T, f16>, "compute capability 7.5 has no bf16");
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(b0));
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

template <class T, int BM, int BN, int BK, int WM, int WN, int V> struct WarpEngine {
  static constexpr bool takes_copies = true;  // elements lie in shared memory as they do in X and W
  static constexpr int depth = BK;
  static constexpr int warps_n = BN / WN;
  static constexpr int warps = BM / WM * warps_n;
  static constexpr int threads = 32 * warps;
  static constexpr int pitch_k = BK + 8, pitch_n = BN + 8;
  static constexpr int pitch_out = WN + 4;
  static_assert(WM % 16 == 0 && WN % 16 == 0 && BK % 16 == 0, "fragments are whole");

  struct Stage {
    SharedArray<u16, BM * pitch_k> weights;
    SharedArray<u16, BK * pitch_n> inputs;
  };
  template <int Stages> union Shared {
    Stage stages[Stages];
    SharedArray<f32, 16 * pitch_out> results[warps];
  };

  f32 sums[WM / 16][WN / 8][4] = {};

  template <int A> static ONNXFUSE_DEVICE void put_weights(Stage& stage, int m, int k, const Pack<T, A>& pack) {
    stage.weights.template put_pack<A>(m * pitch_k + k, bits_of(pack));
  }
  template <int B> static ONNXFUSE_DEVICE void put_inputs(Stage& stage, int k, int column, const Pack<T, B>& pack) {
    stage.inputs.template put_pack<B>(k * pitch_n + column, bits_of(pack));
  }
  template <int A> static ONNXFUSE_DEVICE u16* weights_at(Stage& stage, int m, int k) {
    return stage.weights.template at<A>(m * pitch_k + k);
  }
  template <int B> static ONNXFUSE_DEVICE u16* inputs_at(Stage& stage, int k, int column) {
    return stage.inputs.template at<B>(k * pitch_n + column);
  }
  template <int N> static ONNXFUSE_DEVICE Pack<u16, N> bits_of(const Pack<T, N>& pack) {
    Pack<u16, N> bits;
#pragma unroll
    for (int p = 0; p < Pack<T, N>::pieces; ++p) {
#pragma unroll
      for (int i = 0; i < Pack<T, N>::words; ++i) bits.at[p].words[i] = pack.at[p].words[i];
    }
    return bits;
  }

  static ONNXFUSE_DEVICE int warp_row() { return static_cast<int>(threadIdx.x) / 32 / warps_n * WM; }
  static ONNXFUSE_DEVICE int warp_column() { return static_cast<int>(threadIdx.x) / 32 % warps_n * WN; }

  ONNXFUSE_DEVICE void multiply(const Stage& stage) {
    const int lane = threadIdx.x % 32;
    const int row = lane % 16, half = lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < BK; k += 16) {
      u32 a[WM / 16][4], b[WN / 16][4];
#pragma unroll
      for (int i = 0; i < WM / 16; ++i) {
        load_matrices<false>(stage.weights.template at<8>((warp_row() + i * 16 + row) * pitch_k + k + half), a[i]);
      }
#pragma unroll
      for (int j = 0; j < WN / 16; ++j) {
        load_matrices<true>(stage.inputs.template at<8>((k + row) * pitch_n + warp_column() + j * 16 + half), b[j]);
      }
#pragma unroll
      for (int i = 0; i < WM / 16; ++i) {
#pragma unroll
        for (int j = 0; j < WN / 8; ++j) {
          multiply_fragments<T>(a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], sums[i][j]);
        }
      }
    }
  }

  template <class Shared, class Put> ONNXFUSE_DEVICE void finish(Shared& shared, const Put& put) const {
    const int lane = threadIdx.x % 32;
    auto& results = shared.results[threadIdx.x / 32];
#pragma unroll
    for (int i = 0; i < WM / 16; ++i) {
      __syncwarp();  // the rows before have been read
#pragma unroll
      for (int j = 0; j < WN / 8; ++j) {
        const int at = lane / 4 * pitch_out + j * 8 + lane % 4 * 2;
        const f32 upper[2] = {sums[i][j][0], sums[i][j][1]}, lower[2] = {sums[i][j][2], sums[i][j][3]};
        results.template put_pack<2>(at, narrow_pack<f32>(upper));
        results.template put_pack<2>(at + 8 * pitch_out, narrow_pack<f32>(lower));
      }
      __syncwarp();
#pragma unroll 2
      for (int group = lane; group < 16 * WN / V; group += 32) {
        const int row = group / (WN / V), column = group % (WN / V) * V;
        const Pack<f32, V> pack = results.template get_pack<V>(row * pitch_out + column);
        f32 values[V];
#pragma unroll
        for (int e = 0; e < V; ++e) values[e] = pack.get(e);
        put(warp_row() + i * 16 + row, warp_column() + column, values);
      }
    }
  }
};

template <class T, int BM, int BN, int BK, int WM, int WN, int V> struct TensorEngineOf {
  using type = WarpEngine<T, BM, BN, BK, WM, WN, V>;
};
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
template <int BM, int BN, int BK, int WM, int WN, int V> struct TensorEngineOf<bf16, BM, BN, BK, WM, WN, V> {
  using type = SimtEngine<bf16, BM, BN, 8, WM * WN / 256, 8, V>;  // as many threads
};
#endif
template <class T, int BM, int BN, int BK, int WM, int WN, int V>
using TensorEngine = typename TensorEngineOf<T, BM, BN, BK, WM, WN, V>::type;

}  // namespace onnxfuse

#endif  // ONNXFUSE_CONV_TENSOR_CUH_
