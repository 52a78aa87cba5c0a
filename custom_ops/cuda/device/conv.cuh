// Convolutions: what the kernels of all families share.
//
// Every convolution has three spatial dimensions, D, H, W; one of fewer has leading dimensions of size 1.  What is known
// when the kernel is rendered is in a struct Spec:
//
//   using T;  channels_last, transposed, in_channels, out_channels, group;  kernel_d, kernel_h, kernel_w, stride_…, dilation_…;
//   has_pads: whether pad_d, pad_h, pad_w (of the begins) are known too, rather than in the ConvShape.
//
// Two functors are rendered with a kernel.  head(values, image, channel, position) turns V neighbouring elements of X
// into what is convolved; Head::exists says whether it does anything.  tail(sums, image, channel, position) finishes V
// neighbouring results and writes them.  `position` counts the elements of a plane of X, and of the result.  Neighbours are
// positions of one channel, or if the channels are last channels of one position.
//
// Sums are of float, by fused multiply-add; the source is compiled without contraction, so that the tail is exact.

#ifndef ONNXFUSE_CONV_CUH_
#define ONNXFUSE_CONV_CUH_

namespace onnxfuse {

// Sizes of one launch: onnxfuse/cuda/conv/arguments.py.
template <class Index> struct ConvShape {
  Index batch;
  Index in[3];
  Index out[3];
  Index pad[3];
  Index splits;
  Divider<Index> out_width;
  Divider<Index> out_height;
  Divider<Index> positions;  // of a plane of the result
};

// How many elements an operand advances for a step along N, M (or C), D, H, W; 0 where it is broadcast.
template <class Index> struct ConvSteps {
  Index step[5];
};

template <class Index> struct SignedOf;
template <> struct SignedOf<u32> { using type = i32; };
template <> struct SignedOf<u64> { using type = i64; };
template <class Index> using Signed = typename SignedOf<Index>::type;

template <class Index> struct Position {
  Index d, h, w;
};

template <class Index> ONNXFUSE_DEVICE Index in_positions(const ConvShape<Index>& shape) {
  return shape.in[0] * shape.in[1] * shape.in[2];
}

template <class Index> ONNXFUSE_DEVICE Position<Index> out_position(const ConvShape<Index>& shape, Index position) {
  const Index row = shape.out_width.quotient(position);
  const Index d = shape.out_height.quotient(row);
  return {d, row - d * shape.out[1], position - row * shape.out[2]};
}

// Seldom needed, so without a Divider.
template <class Index> ONNXFUSE_DEVICE Position<Index> in_position(const ConvShape<Index>& shape, Index position) {
  const Index row = position / shape.in[2];
  const Index d = row / shape.in[1];
  return {d, row - d * shape.in[1], position - row * shape.in[2]};
}

template <class Index>
ONNXFUSE_DEVICE Index strided(const ConvSteps<Index>& steps, Index image, Index channel, const Position<Index>& at) {
  return image * steps.step[0] + channel * steps.step[1] + at.d * steps.step[2] + at.h * steps.step[3] +
         at.w * steps.step[4];
}

// The prologue of a convolution that has none.
struct NoHead {
  static constexpr bool exists = false;
  template <int V, class Index> ONNXFUSE_DEVICE void operator()(f32 (&)[V], Index, Index, Index) const {}
};

template <class Spec, class Index> ONNXFUSE_DEVICE Signed<Index> pad_d(const ConvShape<Index>& shape) {
  if constexpr (Spec::has_pads) return Spec::pad_d;
  else return static_cast<Signed<Index>>(shape.pad[0]);
}
template <class Spec, class Index> ONNXFUSE_DEVICE Signed<Index> pad_h(const ConvShape<Index>& shape) {
  if constexpr (Spec::has_pads) return Spec::pad_h;
  else return static_cast<Signed<Index>>(shape.pad[1]);
}
template <class Spec, class Index> ONNXFUSE_DEVICE Signed<Index> pad_w(const ConvShape<Index>& shape) {
  if constexpr (Spec::has_pads) return Spec::pad_w;
  else return static_cast<Signed<Index>>(shape.pad[2]);
}

// Where the window of an output coordinate begins; for a transposed convolution, where it ends, in steps of the stride.
template <class Spec, int Stride, class S> ONNXFUSE_DEVICE S window(S out, S pad) {
  if constexpr (Spec::transposed) return out + pad;
  else return out * Stride - pad;
}

// The input coordinate that a kernel element meets; false if it meets padding, or a gap between strides.
template <class Spec, int Stride, int Dilation, class S>
ONNXFUSE_DEVICE bool meets(S window, S kernel, S size, S& in) {
  if constexpr (!Spec::transposed) {
    in = window + kernel * Dilation;
    return in >= 0 && in < size;
  } else {
    const S reached = window - kernel * Dilation;
    in = reached / Stride;
    return reached >= 0 && in * Stride == reached && in < size;
  }
}

// The element of W that takes `channel` of X to `m` of the result, both counted in their group.
// (Signed, for the compiler to see that neighbouring places are so many bytes apart.)
template <class Spec> ONNXFUSE_DEVICE i32 weight_index(i32 group, i32 m, i32 channel, i32 tap) {
  constexpr i32 taps = Spec::kernel_d * Spec::kernel_h * Spec::kernel_w;
  constexpr i32 ins = Spec::in_channels / Spec::group, outs = Spec::out_channels / Spec::group;
  if constexpr (Spec::transposed) return ((group * ins + channel) * outs + m) * taps + tap;
  else return ((group * outs + m) * ins + channel) * taps + tap;
}

}  // namespace onnxfuse

#endif  // ONNXFUSE_CONV_CUH_
