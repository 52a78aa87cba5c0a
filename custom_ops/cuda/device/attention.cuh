// Scaled dot-product attention in one pass over the keys: softmax(scale · Q Kᵀ + mask) V without a matrix of scores.
//
// The Softmax is online (M. Milakov and N. Gimelshein, Online normalizer calculation for softmax, 2018): a row has the
// largest of its scores so far, the sum of the exponentials of their differences from it, and the values weighted with these;
// all are scaled when a larger score comes.  Blocks that share the keys of a row leave the three in the workspace, to be joined
// in the order of the keys by a kernel of its own.
//
// The rows of a block are those of all heads of Q that share one of K and V, a query's heads side by side, so that K and V
// are read once for all of them.  A row of nothing but minus infinities is NaN, as in ONNX Runtime, and so is one with a
// NaN or an infinity among its scores.

#ifndef ONNXFUSE_ATTENTION_CUH_
#define ONNXFUSE_ATTENTION_CUH_

namespace onnxfuse {

// Elements between the batches, heads and rows of a tensor, and before the first.
struct HeadStrides {
  i64 begin;
  i64 batch;
  i64 head;
  i64 row;

  ONNXFUSE_DEVICE i64 of(i32 b, i32 h) const { return begin + b * batch + h * head; }
};

// Of the scores; keys are next to each other, or share one element.
struct ScoreStrides {
  i64 batch;
  i64 head;
  i64 row;
  i64 key;
};

struct AttentionShape {
  HeadStrides q;
  HeadStrides k;
  HeadStrides v;
  HeadStrides out;
  ScoreStrides mask;
  ScoreStrides choices;
  i32 batch;
  i32 key_heads;   // of K and V
  i32 queries;
  i32 keys;
  i32 size;        // of a row of Q and K
  i32 value_size;  // of V
  i32 mask_batch;  // after so many the mask's begin anew
  i32 splits;      // blocks that share the keys of a row
  i32 chunk;       // keys of each
  f32 scale;
  f32 fill;          // in the place of a score, where the choice is `fills`
  u32 fills;
  u32 nan_as_zero;   // a row of weights that are no numbers is one of zeros
  Divider<u32> group;  // heads of Q for each of K and V

  ONNXFUSE_DEVICE i32 heads_of_key() const { return static_cast<i32>(group.divisor); }
  ONNXFUSE_DEVICE i32 rows() const { return queries * heads_of_key(); }  // that share keys
  ONNXFUSE_DEVICE i64 all_rows() const { return static_cast<i64>(batch) * key_heads * rows(); }
};

template <class T> struct AttentionOperands {
  const T* q;
  const T* k;
  const T* v;
  const T* mask;
  const boolean* choices;
  T* out;
  f32* workspace;  // results of all rows for each split, then the largest score, the sum and `left` of each
};

// What is done to scores; with Zeros a row of weights of which that leaves nothing is one of zeros.
template <bool Masked, bool Chosen, bool Zeros> struct ScoreKind {
  static constexpr bool masked = Masked, chosen = Chosen, zeros = Zeros;
};

ONNXFUSE_DEVICE f32 minus_infinity() { return __uint_as_float(0xff800000u); }

// The least number of a type.
template <class T> ONNXFUSE_DEVICE f32 least_number() {
  if constexpr (is_same<T, f16>) return -65504.0f;
  else if constexpr (is_same<T, bf16>) return __uint_as_float(0xff7f0000u);
  else return __uint_as_float(0xff7fffffu);
}

// e^x for x <= 0: exact results take expf, those of 16 bits the GPU's own 2^x.
template <class T> ONNXFUSE_DEVICE f32 weight_of(f32 x) {
  if constexpr (is_same<T, f32>) return ::expf(x);
  else return ::exp2f(x * 0x1.715476p+0f);
}

// The part of the work that a block has.
struct AttentionPart {
  i32 batch;
  i32 key_head;
  i32 row;     // the first
  i32 column;  // the first of the values
  i32 split;
  i32 first;  // keys
  i32 last;
  i64 mask;  // where those of the batch begin
  i64 choices;

  template <int Rows, int Columns> static ONNXFUSE_DEVICE AttentionPart of_block(const AttentionShape& shape) {
    i32 rest = static_cast<i32>(blockIdx.x);
    const auto take = [&](i32 count) {
      const i32 own = rest % count;
      rest /= count;
      return own;
    };
    AttentionPart part;
    part.split = take(shape.splits);
    part.row = take((shape.rows() - 1) / Rows + 1) * Rows;
    part.column = take((shape.value_size - 1) / Columns + 1) * Columns;
    part.key_head = take(shape.key_heads);
    part.batch = rest;
    part.first = part.split * shape.chunk;
    part.last = shape.keys - part.first > shape.chunk ? part.first + shape.chunk : shape.keys;
    part.mask = part.batch % shape.mask_batch * shape.mask.batch;
    part.choices = part.batch * shape.choices.batch;
    return part;
  }
};

// A row of Q: which query of which head, and where its masks begin.
struct AttentionRow {
  i32 head;
  i32 query;
  bool inside;
  i64 mask;
  i64 choices;

  AttentionRow() = default;
  ONNXFUSE_DEVICE AttentionRow(const AttentionShape& shape, const AttentionPart& part, i32 row) {
    inside = row < shape.rows();
    const u32 known = inside ? static_cast<u32>(row) : 0;
    query = static_cast<i32>(shape.group.quotient(known));
    head = part.key_head * shape.heads_of_key() + static_cast<i32>(shape.group.remainder(known));
    mask = part.mask + head * shape.mask.head + query * shape.mask.row;
    choices = part.choices + head * shape.choices.head + query * shape.choices.row;
  }

  ONNXFUSE_DEVICE i64 of_queries(const AttentionShape& shape, i32 batch) const {
    return shape.q.of(batch, head) + query * shape.q.row;
  }
};

// A product of Q and K as it is weighed; `left` becomes true where the masks leave it.
template <class Kind, class T>
ONNXFUSE_DEVICE f32 score_of(const AttentionOperands<T>& in, const AttentionShape& shape, const AttentionRow& row, i32 key,
                             f32 product, bool& left) {
  f32 x = product * shape.scale;
  if constexpr (Kind::chosen) {
    const bool choice = widen(load(in.choices, row.choices + key * static_cast<i32>(shape.choices.key)));
    if (choice == (shape.fills != 0)) x = shape.fill;
    else left = true;
  }
  if constexpr (Kind::masked) {
    const f32 mask = widen(load(in.mask, row.mask + key * static_cast<i32>(shape.mask.key)));
    x = x + mask;
    if (!Kind::chosen && !(mask <= least_number<T>())) left = true;
  }
  return x;
}

// What a row has of the keys so far, but for the values.
struct RowState {
  f32 most = minus_infinity();
  f32 sum = 0.0f;
  bool left = false;

  // Takes a larger score; what was summed is to be multiplied by the result.
  template <class T> ONNXFUSE_DEVICE f32 raise(f32 score) {
    const f32 before = most;
    most = score;
    return weight_of<T>(before - base());
  }
  // What is subtracted from scores; minus infinity less itself would be no number, where all are that so far.
  ONNXFUSE_DEVICE f32 base() const { return most == minus_infinity() ? 0.0f : most; }
};

// What becomes of a row's weighted sums.
struct RowFactor {
  bool cleared;
  f32 factor;

  template <class Kind> static ONNXFUSE_DEVICE RowFactor of(const AttentionShape& shape, const RowState& row) {
    const bool none = (Kind::zeros && !row.left) || (shape.nan_as_zero != 0 && !(row.sum > 0.0f)) || shape.keys == 0;
    // Zero times an infinity among the values is no number, as in a product; of scores that are none nothing else is known.
    return {none && row.sum != row.sum, none ? 0.0f : 1.0f / row.sum};
  }
  ONNXFUSE_DEVICE f32 times(f32 sum) const { return (cleared ? 0.0f : sum) * factor; }
};

// Where a row's results go: to the output or, where splits share its keys, to the workspace.
template <class Kind> struct RowResults {
  i64 place;
  RowFactor factor;

  // One thread of those that have a row `tells` the state of all.
  template <class T>
  ONNXFUSE_DEVICE RowResults(const AttentionOperands<T>& in, const AttentionShape& shape, const AttentionPart& part,
                             const AttentionRow& row, const RowState& state, bool tells) {
    factor = RowFactor::of<Kind>(shape, state);
    place = shape.out.of(part.batch, row.head) + row.query * shape.out.row;
    if (shape.splits == 1) return;
    const i64 head = static_cast<i64>(part.batch) * shape.key_heads * shape.heads_of_key() + row.head;
    const i64 number = part.split * shape.all_rows() + head * shape.queries + row.query;
    place = number * shape.value_size;
    if (!tells || part.column != 0) return;
    const i64 states = shape.splits * shape.all_rows() * shape.value_size + 3 * number;
    store(in.workspace, states, state.most);
    store(in.workspace, states + 1, state.sum);
    store(in.workspace, states + 2, state.left ? 1.0f : 0.0f);
  }

  // Run neighbours from `column` on; Split is whether there are splits.
  template <bool Split, int Run, class T>
  ONNXFUSE_DEVICE void put(const AttentionOperands<T>& in, i32 column, const f32 (&sums)[Run]) const {
    if constexpr (Split) {
#pragma unroll
      for (int e = 0; e < Run; ++e) store(in.workspace, place + column + e, sums[e]);
    } else {
      f32 results[Run];
#pragma unroll
      for (int e = 0; e < Run; ++e) results[e] = factor.times(sums[e]);
      store_pack<Run>(in.out, place + column, narrow_pack<T>(results));
    }
  }
};

// Joins what the splits have left of a row, whose number is that of the block.
template <class Kind, class T, int Block>
ONNXFUSE_DEVICE void join_splits(const AttentionOperands<T>& in, const AttentionShape& shape) {
  const i64 rows = shape.all_rows(), own = static_cast<i64>(blockIdx.x);
  const i64 states = shape.splits * rows * shape.value_size + 3 * own;
  RowState state;
#pragma unroll 1
  for (i32 s = 0; s < shape.splits; ++s) {
    state.most = ::fmaxf(state.most, load(in.workspace, states + 3 * s * rows));
    state.left |= load(in.workspace, states + 3 * s * rows + 2) != 0.0f;
  }
#pragma unroll 1
  for (i32 s = 0; s < shape.splits; ++s) {
    const f32 factor = weight_of<T>(load(in.workspace, states + 3 * s * rows) - state.base());
    state.sum = ::fmaf(load(in.workspace, states + 3 * s * rows + 1), factor, state.sum);
  }
  const RowFactor row_factor = RowFactor::of<Kind>(shape, state);
  const i32 number = static_cast<i32>(blockIdx.x), of_head = number / shape.queries;
  const i32 heads = shape.key_heads * shape.heads_of_key(), batch = of_head / heads;
  const i64 out = shape.out.of(batch, of_head - batch * heads) + (number - of_head * shape.queries) * shape.out.row;
#pragma unroll 1
  for (i32 column = static_cast<i32>(threadIdx.x); column < shape.value_size; column += Block) {
    f32 sum = 0.0f;
#pragma unroll 4
    for (i32 s = 0; s < shape.splits; ++s) {
      const f32 factor = weight_of<T>(load(in.workspace, states + 3 * s * rows) - state.base());
      sum = ::fmaf(load(in.workspace, (s * rows + own) * shape.value_size + column), factor, sum);
    }
    store(in.out, out + column, narrow<T>(row_factor.times(sum)));
  }
}

// ---------------------------------------------------------------------------------------------- heads of any size

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
#pragma unroll 1
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

#endif  // ONNXFUSE_ATTENTION_CUH_
