// Depthwise convolution: every channel has one filter of its own, so that each plane of X is read once and each plane of
// the result written once; the rest must not take longer than that.
//
// A block takes Planes planes (channels of images) by Rows by Columns of the result.  It reads what they need of X into
// shared memory as floats, V neighbours at a time, padded with zeros; the prologue is computed there, once an element.
// A thread then computes ThreadRows by V: it reads rows of a few vectors from shared memory, each once, for all of its
// rows of the result.  For 3x3 and V = 4 that is 12 floats for each of 6 rows, 4.5 shared-memory reads an output, of
// which a vector instruction does 4; the weights are in registers.  The blocks are small (a few kilobytes of shared
// memory), so that some load while others compute.
//
// V > 1 needs sizes that are multiples of V and pads that are known: then vectors of X begin at multiples of V.

#ifndef ONNXFUSE_CONV_DEPTHWISE_CUH_
#define ONNXFUSE_CONV_DEPTHWISE_CUH_

namespace onnxfuse {

// How a tile of X lies in shared memory.
template <class Spec, int Rows, int Columns, int V> struct ConvPatch {
  static constexpr int span_h = (Spec::kernel_h - 1) * Spec::dilation_h + 1;
  static constexpr int span_w = (Spec::kernel_w - 1) * Spec::dilation_w + 1;
  // Columns that are loaded before the first that is needed, to begin at a vector.
  static constexpr int shift = V == 1 ? 0 : (V - Spec::pad_w % V) % V;
  // Columns that a thread reads for V neighbouring results.
  static constexpr int reach = (shift + (V - 1) * Spec::stride_w + span_w + V - 1) / V * V;
  static constexpr int rows = (Rows - 1) * Spec::stride_h + span_h;
  static constexpr int pitch = (Columns - V) * Spec::stride_w + reach;
  static constexpr int size = rows * pitch;
};

// Fills `patch` with Planes planes of X: plane p is that of `channel_of(p, image, channel)`, if that is true.
template <class Spec, class Patch, int Planes, int Block, int V, class Index, class Head, class Channel, int Size>
ONNXFUSE_DEVICE void fill_patch(SharedArray<f32, Size>& patch, const typename Spec::T* x, const ConvShape<Index>& shape,
                                const Head& head, i32 d, i32 first_h, i32 first_w, const Channel& channel_of) {
  using T = typename Spec::T;
  constexpr int groups = Patch::pitch / V;
  constexpr int total = Planes * Patch::rows * groups;
  constexpr int at_once = total < 4 * Block ? (total + Block - 1) / Block : 4;  // loads a thread waits for
  for (int begin = threadIdx.x; begin < total; begin += at_once * Block) {
    Pack<T, V> loaded[at_once];
    Index images[at_once], channels[at_once], positions[at_once];
    bool inside[at_once];
#pragma unroll
    for (int u = 0; u < at_once; ++u) {
      const int i = begin + u * Block;
      const int row = i / groups;
      const int plane = Planes == 1 ? 0 : row / Patch::rows;
      const i32 h = first_h + (row - plane * Patch::rows);
      const i32 v = first_w + (i - row * groups) * V;
      inside[u] = i < total && channel_of(plane, images[u], channels[u]) && h >= 0 && v >= 0 &&
                  h < static_cast<i32>(shape.in[1]) && v < static_cast<i32>(shape.in[2]);
      if (inside[u]) {
        positions[u] = (d * shape.in[1] + h) * shape.in[2] + v;
        const Index whole = images[u] * Spec::in_channels + channels[u];
        loaded[u] = load_pack<V>(x, whole * in_positions(shape) + positions[u]);
      }
    }
#pragma unroll
    for (int u = 0; u < at_once; ++u) {
      const int i = begin + u * Block;
      if (i >= total) break;
      f32 values[V];
#pragma unroll
      for (int j = 0; j < V; ++j) values[j] = inside[u] ? widen(loaded[u].get(j)) : 0.0f;
      if (Head::exists && inside[u]) head(values, images[u], channels[u], positions[u]);
      patch.template put_pack<V>(i * V, narrow_pack<f32>(values));
    }
  }
}

// A row of `patch` from `first` on, into registers.
template <int Count, int V, int Size>
ONNXFUSE_DEVICE void read_row(const SharedArray<f32, Size>& patch, int first, f32 (&values)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; i += V) {
    const Pack<f32, V> pack = patch.template get_pack<V>(first + i);
#pragma unroll
    for (int j = 0; j < V; ++j) values[i + j] = pack.get(j);
  }
}

template <class Spec, int Planes, int Rows, int Columns, int ThreadRows, int V, int Block, class Index, class Head,
          class Tail>
ONNXFUSE_DEVICE void convolve_depthwise(const typename Spec::T* x, const typename Spec::T* w,
                                        const ConvShape<Index>& shape, const Head& head, const Tail& tail) {
  using Patch = ConvPatch<Spec, Rows, Columns, V>;
  constexpr int taps = Spec::kernel_h * Spec::kernel_w;
  constexpr int thread_columns = Columns / V, thread_rows = Rows / ThreadRows;
  __shared__ SharedArray<f32, Planes * Patch::size> patch;

  const Index tiles_w = (shape.out[2] + Columns - 1) / Columns;
  const Index tiles_h = (shape.out[1] + Rows - 1) / Rows;
  Index rest = blockIdx.x;
  const Index tile_w = rest % tiles_w;
  rest /= tiles_w;
  const Index tile_h = rest % tiles_h;
  rest /= tiles_h;
  const Index out_d = rest % shape.out[0];
  const Index first_plane = rest / shape.out[0] * Planes;
  const Index planes = shape.batch * Spec::out_channels;

  const int column = threadIdx.x % thread_columns * V;
  const int row = threadIdx.x / thread_columns % thread_rows * ThreadRows;
  const int own = threadIdx.x / (thread_columns * thread_rows);
  const Index plane = first_plane + own;
  const Index image = plane / Spec::out_channels;
  const Index channel = plane - image * Spec::out_channels;
  const bool works = own < Planes && plane < planes;

  f32 sums[ThreadRows][V] = {};
#pragma unroll 1
  for (int kd = 0; kd < Spec::kernel_d; ++kd) {
    const i32 d = static_cast<i32>(out_d) * Spec::stride_d - pad_d<Spec>(shape) + kd * Spec::dilation_d;
    if (d < 0 || d >= static_cast<i32>(shape.in[0])) continue;  // alike in the whole block
    f32 weights[taps];
#pragma unroll
    for (int tap = 0; tap < taps; ++tap) {
      weights[tap] = works ? widen(load(w, (channel * Spec::kernel_d + kd) * taps + tap)) : 0.0f;
    }
    const i32 first_h = static_cast<i32>(tile_h) * (Rows * Spec::stride_h) - pad_h<Spec>(shape);
    const i32 first_w = static_cast<i32>(tile_w) * (Columns * Spec::stride_w) - pad_w<Spec>(shape) - Patch::shift;
    if (Spec::kernel_d > 1) __syncthreads();  // the patch of the plane before has been read
    fill_patch<Spec, Patch, Planes, Block, V>(
        patch, x, shape, head, d, first_h, first_w, [&](int p, Index& image_in, Index& channel_in) {
          image_in = (first_plane + p) / Spec::out_channels;
          channel_in = first_plane + p - image_in * Spec::out_channels;
          return first_plane + p < planes;
        });
    __syncthreads();
    if (works) {
#pragma unroll
      for (int r = 0; r < (ThreadRows - 1) * Spec::stride_h + Patch::span_h; ++r) {
        f32 values[Patch::reach];
        read_row<Patch::reach, V>(patch, (own * Patch::rows + row * Spec::stride_h + r) * Patch::pitch +
                                             column * Spec::stride_w, values);
#pragma unroll
        for (int t = 0; t < ThreadRows; ++t) {
          const int below = r - t * Spec::stride_h;
          if (below < 0 || below >= Patch::span_h || below % Spec::dilation_h != 0) continue;
#pragma unroll
          for (int kw = 0; kw < Spec::kernel_w; ++kw) {
#pragma unroll
            for (int j = 0; j < V; ++j) {
              sums[t][j] = fmaf(weights[below / Spec::dilation_h * Spec::kernel_w + kw],
                                values[Patch::shift + j * Spec::stride_w + kw * Spec::dilation_w], sums[t][j]);
            }
          }
        }
      }
    }
  }

  const Index out_w = tile_w * Columns + column;
  if (!works || out_w >= shape.out[2]) return;
#pragma unroll
  for (int t = 0; t < ThreadRows; ++t) {
    const Index out_h = tile_h * Rows + row + t;
    if (out_h < shape.out[1]) {
      tail(sums[t], image, channel, (out_d * shape.out[1] + out_h) * shape.out[2] + out_w);
    }
  }
}

}  // namespace onnxfuse

#endif  // ONNXFUSE_CONV_DEPTHWISE_CUH_
