// Where the elements of an iteration space lie in each operand, and how threads share the space.

#ifndef ONNXFUSE_INDEXING_CUH_
#define ONNXFUSE_INDEXING_CUH_

namespace onnxfuse {

// Division by a number that is known at launch.  32-bit: one multiplication, for dividends below 2^31 (Granlund and
// Montgomery, Division by Invariant Integers using Multiplication, 1994).
template <class Index> struct Divider;

template <> struct Divider<u32> {
  u32 divisor;
  u32 multiplier;
  u32 shift;

  ONNXFUSE_DEVICE u32 quotient(u32 x) const { return (__umulhi(x, multiplier) + x) >> shift; }
  ONNXFUSE_DEVICE u32 remainder(u32 x) const { return x - quotient(x) * divisor; }
};

template <> struct Divider<u64> {
  u64 divisor;

  ONNXFUSE_DEVICE u64 quotient(u64 x) const { return x / divisor; }
  ONNXFUSE_DEVICE u64 remainder(u64 x) const { return x % divisor; }
};

// The coordinate of element `rest` along a dimension; `rest` becomes its number in the dimensions outside.
template <class Index> ONNXFUSE_DEVICE Index take_coordinate(const Divider<Index>& dim, Index& rest) {
  const Index outer = dim.quotient(rest);
  const Index coordinate = rest - outer * dim.divisor;
  rest = outer;
  return coordinate;
}

constexpr int max_rank = 16;

// The collapsed dimensions of the iteration space, the innermost first.
template <class Index> struct Space {
  u32 rank;
  Divider<Index> dims[max_rank];

  ONNXFUSE_DEVICE Index take(u32 dim, Index& rest) const { return take_coordinate(dims[dim], rest); }
};

// How many elements an operand advances for a step along each dimension of the Space; 0 where it is broadcast.
template <class Index> struct Strides {
  Index step[max_rank];
};

// Runs this thread's group of the groups of V elements that `count` elements have, if there is one: the grid has a
// thread for each.  `load(i)` gives what the group that begins at element i reads, `finish(i, item)` computes and writes
// it.
//
// Measured on an H100, a grid of that size is faster than one of a few waves whose threads loop, by 2 to 4 % where
// tensors are larger than the caches and by 5 % where a launch takes 2 us; several groups a thread, all loaded before
// the first is computed, are slower too: so many warps have loads enough in flight.
template <int V, int Block, class Index, class Load, class Finish>
ONNXFUSE_DEVICE void for_own_group(Index count, u32 block, const Load& load, const Finish& finish) {
  const Index group = static_cast<Index>(block) * Block + threadIdx.x;
  if (group < count / V) finish(group * V, load(group * V));
}

// The up to V - 1 elements after the last group, for the first threads of the last block.
template <int V, class Index, class Element>
ONNXFUSE_DEVICE void for_each_left(Index count, bool is_last, const Element& element) {
  const Index i = count / V * V + threadIdx.x;
  if (is_last && i < count) element(i);
}

}  // namespace onnxfuse

#endif  // ONNXFUSE_INDEXING_CUH_
