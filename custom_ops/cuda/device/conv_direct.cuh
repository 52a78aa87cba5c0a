// Convolution of few input channels, as the first layer of most models has: too short a sum for a matrix product, whose
// tiles would be filled with the same few elements again and again.
//
// A block takes Channels by Rows by Columns of the result.  What these need of all channels of X is in shared memory, and
// so are the weights, those of neighbouring channels of the result side by side.  A thread computes ThreadChannels by V:
// for every row of the kernel it reads a row of X once and, for each element, ThreadChannels weights, which are the same
// for a whole warp; 8 by 4 results take 2 reads of 16 bytes for 32 multiply-adds.
//
// group is 1 and nothing is transposed.  V > 1 asks what it asks of a depthwise convolution (conv_depthwise.cuh).

#ifndef ONNXFUSE_CONV_DIRECT_CUH_
#define ONNXFUSE_CONV_DIRECT_CUH_

namespace onnxfuse {

template <class Spec, int Channels, int Rows, int Columns, int ThreadChannels, int V, int Block, class Index, class Head,
          class Tail>
ONNXFUSE_DEVICE void convolve_direct(const typename Spec::T* x, const typename Spec::T* w,
                                     const ConvShape<Index>& shape, const Head& head, const Tail& tail) {
  using Patch = ConvPatch<Spec, Rows, Columns, V>;
  constexpr int taps = Spec::kernel_h * Spec::kernel_w;
  constexpr int thread_columns = Columns / V;
  constexpr int weight_count = Spec::in_channels * taps * Channels;
  static_assert(ThreadChannels % 4 == 0 && Channels % ThreadChannels == 0, "weights are read by 16 bytes");
  __shared__ SharedArray<f32, Spec::in_channels * Patch::size> patch;
  __shared__ SharedArray<f32, weight_count> weights;

  const Index tiles_w = (shape.out[2] + Columns - 1) / Columns;
  const Index tiles_h = (shape.out[1] + Rows - 1) / Rows;
  constexpr u32 tiles_m = (Spec::out_channels + Channels - 1) / Channels;
  Index rest = blockIdx.x;
  const Index tile_w = rest % tiles_w;
  rest /= tiles_w;
  const Index tile_h = rest % tiles_h;
  rest /= tiles_h;
  const Index out_d = rest % shape.out[0];
  rest /= shape.out[0];
  const u32 first_channel = rest % tiles_m * Channels;
  const Index image = rest / tiles_m;

  const int column = threadIdx.x % thread_columns * V;
  const int row = threadIdx.x / thread_columns % Rows;
  const int own = threadIdx.x / (thread_columns * Rows) * ThreadChannels;

  f32 sums[ThreadChannels][V] = {};
#pragma unroll 1
  for (int kd = 0; kd < Spec::kernel_d; ++kd) {
    const i32 d = static_cast<i32>(out_d) * Spec::stride_d - pad_d<Spec>(shape) + kd * Spec::dilation_d;
    if (d < 0 || d >= static_cast<i32>(shape.in[0])) continue;  // alike in the whole block
    const i32 first_h = static_cast<i32>(tile_h) * (Rows * Spec::stride_h) - pad_h<Spec>(shape);
    const i32 first_w = static_cast<i32>(tile_w) * (Columns * Spec::stride_w) - pad_w<Spec>(shape) - Patch::shift;
    if (Spec::kernel_d > 1) __syncthreads();  // what was there before has been read
    fill_patch<Spec, Patch, Spec::in_channels, Block, V>(patch, x, shape, head, d, first_h, first_w,
                                                         [&](int c, Index& image_in, Index& channel_in) {
                                                           image_in = image;
                                                           channel_in = c;
                                                           return true;
                                                         });
    for (int i = threadIdx.x; i < weight_count; i += Block) {
      const u32 m = first_channel + i % Channels;
      const u32 element = i / Channels;  // of the channels of X and the kernel's rows and columns
      const u32 from = ((m * Spec::in_channels + element / taps) * Spec::kernel_d + kd) * taps + element % taps;
      weights.put(i, m < Spec::out_channels ? widen(load(w, from)) : 0.0f);
    }
    __syncthreads();
    if (own < Channels) {
#pragma unroll 1
      for (int c = 0; c < Spec::in_channels; ++c) {
#pragma unroll
        for (int kh = 0; kh < Spec::kernel_h; ++kh) {
          f32 values[Patch::reach];
          const int from = c * Patch::rows + row * Spec::stride_h + kh * Spec::dilation_h;
          read_row<Patch::reach, V>(patch, from * Patch::pitch + column * Spec::stride_w, values);
#pragma unroll
          for (int kw = 0; kw < Spec::kernel_w; ++kw) {
            const int element = (c * Spec::kernel_h + kh) * Spec::kernel_w + kw;
            f32 factors[ThreadChannels];
            read_row<ThreadChannels, 4>(weights, element * Channels + own, factors);
#pragma unroll
            for (int m = 0; m < ThreadChannels; ++m) {
#pragma unroll
              for (int j = 0; j < V; ++j) {
                sums[m][j] = fmaf(factors[m], values[Patch::shift + j * Spec::stride_w + kw * Spec::dilation_w],
                                  sums[m][j]);
              }
            }
          }
        }
      }
    }
  }

  const Index out_w = tile_w * Columns + column;
  const Index out_h = tile_h * Rows + row;
  if (own >= Channels || out_w >= shape.out[2] || out_h >= shape.out[1]) return;
#pragma unroll
  for (int m = 0; m < ThreadChannels; ++m) {
    const Index channel = first_channel + own + m;
    if (channel < Spec::out_channels) {
      tail(sums[m], image, channel, (out_d * shape.out[1] + out_h) * shape.out[2] + out_w);
    }
  }
}

}  // namespace onnxfuse

#endif  // ONNXFUSE_CONV_DIRECT_CUH_
