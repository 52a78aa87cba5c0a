// Attention by tiles: a block has some rows of Q and goes through the keys, a tile at a time.
//
// K and V have a buffer each.  The tile of V is under way while the scores are computed, and the next one of K while these
// are weighed and the values summed (T. Dao, FlashAttention-2, 2023).

#ifndef ONNXFUSE_ATTENTION_TILES_CUH_
#define ONNXFUSE_ATTENTION_TILES_CUH_

namespace onnxfuse {

// Brings up to Rows rows of which `count` are left, V elements at a time, to shared memory; what is outside becomes 0.
template <class Engine, int V, int Rows, int Columns, int Pitch, class Array, class T>
ONNXFUSE_DEVICE void stage_rows(Array& to, const T* base, i64 first, i64 per_row, i32 count, i32 columns) {
  using Word = typename Engine::Word;
  constexpr int groups = Columns / V;
#pragma unroll 2
  for (int group = threadIdx.x; group < Rows * groups; group += Engine::threads) {
    const int row = group / groups, column = group % groups * V;
    const bool inside = row < count && column < columns;
    const i64 from = first + row * per_row + column;
    if constexpr (Engine::takes_copies && V * sizeof(T) >= 4) {
      copy_async<V>(to.template at<V>(row * Pitch + column), base, from, inside);
    } else {
      const Pack<T, V> pack = inside ? load_pack<V>(base, from) : splat<T, V>(T{});
      if constexpr (is_same<Word, u16>) {
        Pack<u16, V> words;
#pragma unroll
        for (int p = 0; p < Pack<T, V>::pieces; ++p) {
#pragma unroll
          for (int w = 0; w < Pack<T, V>::words; ++w) words.at[p].words[w] = pack.at[p].words[w];
        }
        to.template put_pack<V>(row * Pitch + column, words);
      } else {
        f32 values[V];
#pragma unroll
        for (int e = 0; e < V; ++e) values[e] = widen(pack.get(e));
        to.template put_pack<V>(row * Pitch + column, narrow_pack<f32>(values));
      }
    }
  }
  commit_copies();
}

template <bool Value> struct Flag {
  static constexpr bool value = Value;
};

// Splits: whether several blocks may share the keys of a row.
template <class Engine, class Kind, int V, bool Splits, class T>
ONNXFUSE_DEVICE void attend_tiles(const AttentionOperands<T>& in, const AttentionShape& shape) {
  constexpr int rows = Engine::row_count, scores = Engine::score_count, results = Engine::result_count;
  __shared__ typename Engine::Shared shared;
  const AttentionPart part = AttentionPart::of_block<Engine::rows, Engine::columns>(shape);
  const i64 k = shape.k.of(part.batch, part.key_head), v = shape.v.of(part.batch, part.key_head) + part.column;
  const auto stage_keys = [&](i32 key) {
    stage_rows<Engine, V, Engine::keys, Engine::size, Engine::key_pitch>(shared.keys, in.k, k + key * shape.k.row, shape.k.row,
                                                                         part.last - key, shape.size);
  };
  const auto stage_values = [&](i32 key) {
    stage_rows<Engine, V, Engine::keys, Engine::columns, Engine::value_pitch>(
        shared.values, in.v, v + key * shape.v.row, shape.v.row, part.last - key, shape.value_size - part.column);
  };
  Engine engine;
  engine.template take_queries<V>(shared, in, shape, part);
  AttentionRow own_rows[rows];  // those that are outside have the masks of another
  RowState states[rows];
#pragma unroll
  for (int i = 0; i < rows; ++i) own_rows[i] = AttentionRow(shape, part, part.row + Engine::row(i));
  f32 sums[rows][results] = {};
  stage_keys(part.first);
  for (i32 key = part.first; key < part.last; key += Engine::keys) {
    wait_for_copies<0>();
    __syncthreads();  // the keys are there, the values before have been read
    stage_values(key);
    f32 tile[rows][scores] = {};
    engine.score(shared, tile);
    __syncthreads();  // the keys have been read
    if (key + Engine::keys < part.last) stage_keys(key + Engine::keys);
    else commit_copies();
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      RowState& state = states[i];
      f32 most = state.most;
#pragma unroll
      for (int j = 0; j < scores; ++j) {
        const i32 own = key + Engine::key(j);
        f32& score = tile[i][j];
        score = own < part.last ? score_of<Kind>(in, shape, own_rows[i], own, score, state.left) : minus_infinity();
        most = ::fmaxf(most, score);
      }
#pragma unroll
      for (int bits = Engine::lanes / 2; bits > 0; bits /= 2) most = ::fmaxf(most, __shfl_xor_sync(0xffffffffu, most, bits));
      const f32 factor = state.template raise<T>(most);
      f32 sum = 0.0f;
#pragma unroll
      for (int j = 0; j < scores; ++j) {
        tile[i][j] = weight_of<T>(tile[i][j] - state.base());
        sum += tile[i][j];
      }
      state.sum = ::fmaf(state.sum, factor, sum);
#pragma unroll
      for (int j = 0; j < results; ++j) sums[i][j] *= factor;
    }
    wait_for_copies<1>();
    __syncthreads();  // the values are there
    engine.accumulate(shared, tile, sums);
  }
#pragma unroll
  for (int i = 0; i < rows; ++i) {
    RowState& state = states[i];
#pragma unroll
    for (int bits = Engine::lanes / 2; bits > 0; bits /= 2) {
      state.sum += __shfl_xor_sync(0xffffffffu, state.sum, bits);
      if constexpr (Kind::zeros) state.left |= __shfl_xor_sync(0xffffffffu, static_cast<i32>(state.left), bits) != 0;
    }
    const AttentionRow& row = own_rows[i];
    if (!row.inside) continue;
    const RowResults<Kind> put(in, shape, part, row, state, Engine::column(0) == 0);
    const auto each = [&](auto split) {
      constexpr int run = V > 1 ? Engine::run : 1;
#pragma unroll
      for (int j = 0; j < results; j += run) {
        const i32 column = part.column + Engine::column(j);
        f32 own[run];
#pragma unroll
        for (int e = 0; e < run; ++e) own[e] = sums[i][j + e];
        if (column < shape.value_size) put.template put<decltype(split)::value>(in, column, own);
      }
    };
    if (Splits && shape.splits > 1) each(Flag<true>{});
    else each(Flag<false>{});
  }
}

// The same where there are no tensor cores for the type: bf16 of compute capability 7.5.
template <class T, int BM, int BN, int D, int DV, class Kind, int V, bool Splits>
ONNXFUSE_DEVICE void attend_by_tensor_cores(const AttentionOperands<T>& in, const AttentionShape& shape) {
  if constexpr (is_same<T, f16> || is_ampere) {
    attend_tiles<TensorAttention<T, BM, BN, D, DV>, Kind, V, Splits>(in, shape);
  } else {
    attend_rows<Kind, BM, DV, BM * 2>(in, shape);
  }
}

}  // namespace onnxfuse

#endif  // ONNXFUSE_ATTENTION_TILES_CUH_
