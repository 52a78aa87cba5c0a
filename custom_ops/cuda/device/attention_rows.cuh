// Attention for what tiles do not take: heads of any size, each row of Q by one warp.

#ifndef ONNXFUSE_ATTENTION_ROWS_CUH_
#define ONNXFUSE_ATTENTION_ROWS_CUH_

namespace onnxfuse {

// The lanes share the products of a row of Q with one key after the other, and Columns columns of its result.
template <class Kind, int Columns, class T>
ONNXFUSE_DEVICE void attend_row(const AttentionOperands<T>& in, const AttentionShape& shape, const AttentionPart& part,
                                i32 number) {
  constexpr int groups = (Columns + 31) / 32;
  const AttentionRow row(shape, part, number);
  const i32 end = shape.value_size - part.column < Columns ? shape.value_size : part.column + Columns;
  const i32 lane = static_cast<i32>(threadIdx.x) % 32;
  const i64 q = row.of_queries(shape, part.batch);
  const i64 k = shape.k.of(part.batch, part.key_head), v = shape.v.of(part.batch, part.key_head);
  RowState state;
  f32 sums[groups] = {};
#pragma unroll 1
  for (i32 key = part.first; key < part.last; ++key) {
    f32 product = 0.0f;
#pragma unroll 2
    for (i32 d = lane; d < shape.size; d += 32) {
      product = ::fmaf(widen(load(in.q, q + d)), widen(load(in.k, k + key * shape.k.row + d)), product);
    }
#pragma unroll
    for (int bits = 16; bits > 0; bits /= 2) product += __shfl_xor_sync(0xffffffffu, product, bits);
    const f32 score = score_of<Kind>(in, shape, row, key, product, state.left);
    const f32 factor = state.raise<T>(::fmaxf(state.most, score));
    const f32 weight = weight_of<T>(score - state.base());
    state.sum = ::fmaf(state.sum, factor, weight);
#pragma unroll
    for (int c = 0; c < groups; ++c) {
      const i32 column = part.column + c * 32 + lane;
      const f32 value = column < end ? widen(load(in.v, v + key * shape.v.row + column)) : 0.0f;
      sums[c] = ::fmaf(weight, value, sums[c] * factor);
    }
  }
  const RowResults<Kind> put(in, shape, part, row, state, lane == 0);
#pragma unroll
  for (int c = 0; c < groups; ++c) {
    const i32 column = part.column + c * 32 + lane;
    const f32 one[1] = {sums[c]};
    if (column >= end) continue;
    if (shape.splits > 1) put.template put<true>(in, column, one);
    else put.template put<false>(in, column, one);
  }
}

// A block has Rows rows and Columns columns.
template <class Kind, int Rows, int Columns, int Block, class T>
ONNXFUSE_DEVICE void attend_rows(const AttentionOperands<T>& in, const AttentionShape& shape) {
  const AttentionPart part = AttentionPart::of_block<Rows, Columns>(shape);
  for (i32 r = static_cast<i32>(threadIdx.x) / 32; r < Rows; r += Block / 32) {
    if (part.row + r < shape.rows()) attend_row<Kind, Columns>(in, shape, part, part.row + r);
  }
}

}  // namespace onnxfuse

#endif  // ONNXFUSE_ATTENTION_ROWS_CUH_
