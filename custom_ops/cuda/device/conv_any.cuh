// The convolution that takes everything: a plain loop over the elements of the result, one a thread.

#ifndef ONNXFUSE_CONV_ANY_CUH_
#define ONNXFUSE_CONV_ANY_CUH_

namespace onnxfuse {

template <class Spec, class Index, class Head, class Tail>
ONNXFUSE_DEVICE void convolve_any(const typename Spec::T* x, const typename Spec::T* w, const ConvShape<Index>& shape,
                                  const Head& head, const Tail& tail) {
  using S = Signed<Index>;
  constexpr u32 ins = Spec::in_channels / Spec::group, outs = Spec::out_channels / Spec::group;
  const Index plane_in = in_positions(shape);
  const Index count = shape.batch * Spec::out_channels * shape.positions.divisor;
  const Index step = static_cast<Index>(gridDim.x) * blockDim.x;
  for (Index i = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    const Index plane = Spec::channels_last ? i / Spec::out_channels : shape.positions.quotient(i);
    const Index image = Spec::channels_last ? shape.positions.quotient(plane) : plane / Spec::out_channels;
    const Index position = (Spec::channels_last ? plane - image * shape.positions.divisor
                                                : i - plane * shape.positions.divisor);
    const u32 channel = static_cast<u32>(Spec::channels_last ? i - plane * Spec::out_channels
                                                             : plane - image * Spec::out_channels);
    const u32 group = channel / outs;
    const Position<Index> at = out_position(shape, position);
    const S first_d = window<Spec, Spec::stride_d>(static_cast<S>(at.d), pad_d<Spec>(shape));
    const S first_h = window<Spec, Spec::stride_h>(static_cast<S>(at.h), pad_h<Spec>(shape));
    const S first_w = window<Spec, Spec::stride_w>(static_cast<S>(at.w), pad_w<Spec>(shape));
    f32 sum = 0;
#pragma unroll 1
    for (u32 c = 0; c < ins; ++c) {
      const Index channel_in = group * ins + c;
      const Index base = Spec::channels_last ? image * plane_in * Spec::in_channels + channel_in
                                             : (image * Spec::in_channels + channel_in) * plane_in;
      u32 tap = 0;
#pragma unroll 1
      for (S kd = 0; kd < Spec::kernel_d; ++kd) {
#pragma unroll 1
        for (S kh = 0; kh < Spec::kernel_h; ++kh) {
#pragma unroll 1
          for (S kw = 0; kw < Spec::kernel_w; ++kw, ++tap) {
            S d, h, v;
            if (!meets<Spec, Spec::stride_d, Spec::dilation_d>(first_d, kd, static_cast<S>(shape.in[0]), d)) continue;
            if (!meets<Spec, Spec::stride_h, Spec::dilation_h>(first_h, kh, static_cast<S>(shape.in[1]), h)) continue;
            if (!meets<Spec, Spec::stride_w, Spec::dilation_w>(first_w, kw, static_cast<S>(shape.in[2]), v)) continue;
            const Index from = (static_cast<Index>(d) * shape.in[1] + h) * shape.in[2] + v;
            f32 value[1] = {widen(load(x, base + (Spec::channels_last ? from * Spec::in_channels : from)))};
            head(value, image, channel_in, from);
            sum = fmaf(widen(load(w, weight_index<Spec>(group, channel - group * outs, c, tap))), value[0], sum);
          }
        }
      }
    }
    const f32 sums[1] = {sum};
    tail(sums, image, static_cast<Index>(channel), position);
  }
}

}  // namespace onnxfuse

#endif  // ONNXFUSE_CONV_ANY_CUH_
