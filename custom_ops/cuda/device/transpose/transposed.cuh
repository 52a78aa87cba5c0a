// Tiles of operands whose neighbours in memory are not those of the results, turned in shared memory.
//
// A tile has Size columns, neighbours of which are neighbours in the results, and Size rows, neighbours of which are
// neighbours in the operand.  Threads read V of these at once, and get V of the others.

#ifndef ONNXFUSE_TRANSPOSED_CUH_
#define ONNXFUSE_TRANSPOSED_CUH_

namespace onnxfuse {

// What a thread computes with at once, element by element.
template <class T, int V> struct Few {
  T at[V];

  ONNXFUSE_DEVICE T get(int index) const { return at[index]; }
};

// Where elements lie is such that those which a warp puts at once, or gets, are in different banks of 4 bytes (of 8 bytes
// in half a warp), or in one word, where V elements have 16 bytes or V is 1:
// - Elements of a column follow one another, and columns are Size + 1 elements apart.  So 8 groups of a row begin in banks
//   that differ by multiples of 4, whose elements of four rows lie in the banks between.
// - Columns that a warp puts at once are so far apart that each begins in the next bank: 2 columns in types of 2 bytes; in
//   those of 1 byte 4 columns, and beside each another one, which begins 16 banks further, or 17: then two lanes meet.
// - Of single elements a warp gets 32 of a row, from columns that begin in different banks.
// - In groups of two elements of 8 bytes, the first ones of a column lie together, and the second ones, in an order that
//   the column changes: an exclusive or.
template <class T, int Size, int V> struct TransposedTile {
  static constexpr int of_bank = sizeof(T) < 4 ? 4 / static_cast<int>(sizeof(T)) : 1;
  static constexpr bool in_turns = sizeof(T) == 8 && V == 2;
  static constexpr int stride = in_turns ? Size : Size + (V == 1 ? of_bank : 1);
  static constexpr int groups = Size / V;  // of a row, or of a column

  SharedArray<T, Size * stride> elements;

  ONNXFUSE_DEVICE static int place(int row, int column) {
    if constexpr (in_turns) return column * stride + ((row / 2 + row % 2 * (Size / 2)) ^ (column / 2));
    return column * stride + row;
  }

  // The column that comes as number n.
  ONNXFUSE_DEVICE static int column_of(int n) {
    constexpr int span = 4 * of_bank;
    return n / span * span + n % 4 * of_bank + n / 4 % of_bank;
  }

  // Copies what the space has of a tile, `rows` and `columns` of it, which may be more than Size: the element of row 0 and
  // column 0 is base[first], and those of the next column are `step` elements behind.  Called by all threads of a block.
  template <int Block, class Index>
  ONNXFUSE_DEVICE void load(const T* base, Index first, Index step, Index rows, Index columns) {
    constexpr int all = Size * groups;
    constexpr int count = (all + Block - 1) / Block;  // groups of a thread
    constexpr int waiting = count < 8 ? count : 8;    // which it reads before it puts the first of them
#pragma unroll 1
    for (int begin = static_cast<int>(threadIdx.x); begin < all; begin += waiting * Block) {
      Pack<T, V> packs[waiting];
#pragma unroll
      for (int k = 0; k < waiting; ++k) {
        const int n = begin + k * Block;
        const Index row = n % groups * V;
        const Index column = column_of(n / groups);
        if (n < all && row < rows && column < columns) packs[k] = load_pack<V>(base, first + row + column * step);
      }
#pragma unroll
      for (int k = 0; k < waiting; ++k) {
        const int n = begin + k * Block;
        const int row = n % groups * V;
        const int column = column_of(n / groups);
        if (n >= all || static_cast<Index>(row) >= rows || static_cast<Index>(column) >= columns) continue;
#pragma unroll
        for (int j = 0; j < V; ++j) elements.put(place(row + j, column), packs[k].get(j));
      }
    }
  }

  // V neighbours of a row, from `column` on.
  ONNXFUSE_DEVICE Few<T, V> get(int row, int column) const {
    Few<T, V> few;
#pragma unroll
    for (int j = 0; j < V; ++j) few.at[j] = elements.get(place(row, column + j));
    return few;
  }
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_TRANSPOSED_CUH_
