// The engines of a matrix product on tensor cores, which sum as floats: HalfEngine for f16 and bf16, Tf32Engine for f32
// where the user allows that it is rounded to 11 significant bits.
//
// A warp computes WM x WN results by mma.sync.  ldmatrix brings fragments of 16 rows: the weights as they lie, rows of k;
// 16-bit inputs transposed, since theirs are rows of positions.  Rows are so much longer than the tile that the eight
// pieces of 16 bytes which ldmatrix reads at a time, or the 32 words of a warp, lie in different banks.
//
// Compute capability 7.5 has neither bf16 nor TF32 and runs SimtEngine instead; of f16 it has half the depth.

#ifndef ONNXFUSE_CONV_TENSOR_CUH_
#define ONNXFUSE_CONV_TENSOR_CUH_

namespace onnxfuse {

// How an engine keeps X and W in shared memory: as `Word`s, so many of them at a time that an instruction's fragment is
// `depth` deep, in rows of weights that are `gap` words longer than the tile.
template <class T> struct HalfFormat {
  using Word = u16;
  static constexpr int depth = 16, gap = 8;

  template <int N> static ONNXFUSE_DEVICE Pack<u16, N> words_of(const Pack<T, N>& pack) {
    Pack<u16, N> words;
#pragma unroll
    for (int p = 0; p < Pack<T, N>::pieces; ++p) {
#pragma unroll
      for (int i = 0; i < Pack<T, N>::words; ++i) words.at[p].words[i] = pack.at[p].words[i];
    }
    return words;
  }
};

struct Tf32Format {
  using Word = u32;
  static constexpr int depth = 8, gap = 4;

  template <int N> static ONNXFUSE_DEVICE Pack<u32, N> words_of(const Pack<f32, N>& pack) {
    u32 words[N];
#pragma unroll
    for (int i = 0; i < N; ++i) words[i] = to_tf32(pack.get(i));
    return narrow_pack<u32>(words);
  }
};

// What the engines share: the tiles in shared memory, and what a block's warps have computed, in the layout of mma.sync.
// The results of a warp go through shared memory, 16 rows at a time, so that the epilogue has V neighbours a thread.
template <class Format, int BM, int BN, int BK, int WM, int WN, int V> struct WarpTiles {
  using Word = typename Format::Word;
  static constexpr int depth = BK;
  static constexpr int warps_n = BN / WN;
  static constexpr int warps = BM / WM * warps_n;
  static constexpr int threads = 32 * warps;
  static constexpr int pitch_k = BK + Format::gap, pitch_n = BN + 8, pitch_out = WN + 8;
  static_assert(WM % 16 == 0 && WN % 16 == 0 && BK % Format::depth == 0, "fragments are whole");

  struct Stage {
    SharedArray<Word, BM * pitch_k> weights;
    SharedArray<Word, BK * pitch_n> inputs;
  };
  using Results = SharedArray<f32, 16 * pitch_out>;
  template <int Stages> union Shared {
    Stage stages[Stages];
    Results results[warps];
  };

  f32 sums[WM / 16][WN / 8][4] = {};

  static ONNXFUSE_DEVICE int warp_row() { return static_cast<int>(threadIdx.x) / 32 / warps_n * WM; }
  static ONNXFUSE_DEVICE int warp_column() { return static_cast<int>(threadIdx.x) / 32 % warps_n * WN; }

  template <class T, int A>
  static ONNXFUSE_DEVICE void put_weights(Stage& stage, int m, int k, const Pack<T, A>& pack) {
    stage.weights.template put_pack<A>(m * pitch_k + k, Format::words_of(pack));
  }
  template <class T, int B>
  static ONNXFUSE_DEVICE void put_inputs(Stage& stage, int k, int column, const Pack<T, B>& pack) {
    stage.inputs.template put_pack<B>(k * pitch_n + column, Format::words_of(pack));
  }
  // Where asynchronous copies of Count elements go.
  template <int Count> static ONNXFUSE_DEVICE Word* weights_at(Stage& stage, int m, int k) {
    return stage.weights.template at<Count>(m * pitch_k + k);
  }
  template <int Count> static ONNXFUSE_DEVICE Word* inputs_at(Stage& stage, int k, int column) {
    return stage.inputs.template at<Count>(k * pitch_n + column);
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

template <class T, int BM, int BN, int BK, int WM, int WN, int V>
struct HalfEngine : WarpTiles<HalfFormat<T>, BM, BN, BK, WM, WN, V> {
  using Tiles = WarpTiles<HalfFormat<T>, BM, BN, BK, WM, WN, V>;
  static constexpr bool takes_copies = true;  // elements lie in shared memory as they do in X and W

  ONNXFUSE_DEVICE void multiply(const typename Tiles::Stage& stage) {
    const int lane = threadIdx.x % 32;
    const int row = lane % 16, half = lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < BK; k += 16) {
      u32 a[WM / 16][4], b[WN / 16][4];
#pragma unroll
      for (int i = 0; i < WM / 16; ++i) {
        const int from = (Tiles::warp_row() + i * 16 + row) * Tiles::pitch_k + k + half;
        load_matrices<false>(stage.weights.template at<8>(from), a[i]);
      }
#pragma unroll
      for (int j = 0; j < WN / 16; ++j) {
        const int from = (k + row) * Tiles::pitch_n + Tiles::warp_column() + j * 16 + half;
        load_matrices<true>(stage.inputs.template at<8>(from), b[j]);
      }
#pragma unroll
      for (int i = 0; i < WM / 16; ++i) {
#pragma unroll
        for (int j = 0; j < WN / 8; ++j) {
          multiply_fragments<T>(a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1], this->sums[i][j]);
        }
      }
    }
  }
};

template <int BM, int BN, int BK, int WM, int WN, int V>
struct Tf32Engine : WarpTiles<Tf32Format, BM, BN, BK, WM, WN, V> {
  using Tiles = WarpTiles<Tf32Format, BM, BN, BK, WM, WN, V>;
  static constexpr bool takes_copies = false;  // elements are rounded on their way

  ONNXFUSE_DEVICE void multiply(const typename Tiles::Stage& stage) {
    const int lane = threadIdx.x % 32;
    const int row = lane % 16, half = lane / 16 * 4;
#pragma unroll
    for (int k = 0; k < BK; k += 8) {
      u32 a[WM / 16][4], b[WN / 8][2];
#pragma unroll
      for (int i = 0; i < WM / 16; ++i) {
        const int from = (Tiles::warp_row() + i * 16 + row) * Tiles::pitch_k + k + half;
        // A float is two elements of 16 bits.
        load_matrices<false>(reinterpret_cast<const u16*>(stage.weights.template at<4>(from)), a[i]);
      }
#pragma unroll
      for (int j = 0; j < WN / 8; ++j) {
        const int at = (k + lane % 4) * Tiles::pitch_n + Tiles::warp_column() + j * 8 + lane / 4;
        b[j][0] = stage.inputs.get(at);
        b[j][1] = stage.inputs.get(at + 4 * Tiles::pitch_n);
      }
#pragma unroll
      for (int i = 0; i < WM / 16; ++i) {
#pragma unroll
        for (int j = 0; j < WN / 8; ++j) multiply_tf32(a[i], b[j], this->sums[i][j]);
      }
    }
  }
};

template <class T, bool Newer, int BM, int BN, int BK, int WM, int WN, int V> struct TensorEngineOf {
  using type = HalfEngine<T, BM, BN, BK, WM, WN, V>;
};
template <int BM, int BN, int BK, int WM, int WN, int V> struct TensorEngineOf<f32, true, BM, BN, BK, WM, WN, V> {
  using type = Tf32Engine<BM, BN, BK, WM, WN, V>;
};
template <class T, int BM, int BN, int BK, int WM, int WN, int V> struct TuringEngine {
  using type = SimtEngine<T, BM, BN, 8, WM * WN / 256, 8, V>;  // as many threads
};
template <int BM, int BN, int BK, int WM, int WN, int V>
struct TensorEngineOf<f32, false, BM, BN, BK, WM, WN, V> : TuringEngine<f32, BM, BN, BK, WM, WN, V> {};
template <int BM, int BN, int BK, int WM, int WN, int V>
struct TensorEngineOf<bf16, false, BM, BN, BK, WM, WN, V> : TuringEngine<bf16, BM, BN, BK, WM, WN, V> {};
template <class T, int BM, int BN, int BK, int WM, int WN, int V>
using TensorEngine = typename TensorEngineOf<T, is_ampere, BM, BN, BK, WM, WN, V>::type;

}  // namespace onnxfuse

#endif  // ONNXFUSE_CONV_TENSOR_CUH_
