// The warp's matrix instructions that custom_ops/cuda/device/warp_matrix.cuh uses, by the fragment layouts of the PTX manual.
//
// Each lane puts what it gives the instruction where all lanes see it, and all 32 must take part.

#ifndef ONNXFUSE_EMULATION_TENSOR_CORES_H_
#define ONNXFUSE_EMULATION_TENSOR_CORES_H_

#ifndef ONNXFUSE_EMULATED
#define ONNXFUSE_EMULATED 800  // as __CUDA_ARCH__ of the architecture that is emulated
#endif

namespace emulation {

struct Fragment {
  const uint16_t* row;
  unsigned a[4], b[2];
};

inline thread_local Fragment fragments[1024];

inline const Fragment* warp_fragments() { return fragments + threadIdx.x / warp_size * warp_size; }

inline uint16_t half_of(unsigned word, unsigned index) { return static_cast<uint16_t>(word >> (16 * index)); }

}  // namespace emulation

inline void onnxfuse_emulation_ldmatrix(const uint16_t* row, unsigned (&words)[4], bool transposed) {
  emulation::fragments[threadIdx.x].row = row;
  __syncwarp();
  const emulation::Fragment* lanes = emulation::warp_fragments();
  const unsigned lane = threadIdx.x % emulation::warp_size, outer = lane / 4, inner = lane % 4 * 2;
  for (unsigned matrix = 0; matrix < 4; ++matrix) {
    const emulation::Fragment* rows = lanes + 8 * matrix;
    const unsigned first = transposed ? rows[inner].row[outer] : rows[outer].row[inner];
    const unsigned second = transposed ? rows[inner + 1].row[outer] : rows[outer].row[inner + 1];
    words[matrix] = first | second << 16;
  }
  __syncwarp();
}

// c (16 x 8) += a (16 x depth) · b (depth x 8), of which product(lanes, row, column, k) multiplies two elements.
template <class Product>
void onnxfuse_emulation_multiply(const unsigned (&a)[4], const unsigned (&b)[2], float (&c)[4], unsigned depth,
                                 const Product& product) {
  emulation::Fragment& own = emulation::fragments[threadIdx.x];
  memcpy(own.a, a, sizeof a);
  memcpy(own.b, b, sizeof b);
  __syncwarp();
  const emulation::Fragment* lanes = emulation::warp_fragments();
  const unsigned lane = threadIdx.x % emulation::warp_size;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    for (unsigned k = 0; k < depth; ++k) c[i] += product(lanes, row, column, k);
  }
  __syncwarp();
}

// c (16 x 8) += a (16 x 16) · b (16 x 8); widen makes a float of 16 bits.
template <class Widen>
void onnxfuse_emulation_mma(const unsigned (&a)[4], const unsigned (&b)[2], float (&c)[4], const Widen& widen) {
  const auto product = [&](const emulation::Fragment* lanes, unsigned row, unsigned column, unsigned k) {
    const unsigned holder = k % 8 / 2, upper = k / 8;  // of columns k of a, and rows k of b
    const float left = widen(emulation::half_of(lanes[row % 8 * 4 + holder].a[upper * 2 + row / 8], k % 2));
    const float right = widen(emulation::half_of(lanes[column * 4 + holder].b[upper], k % 2));
    return left * right;
  };
  onnxfuse_emulation_multiply(a, b, c, 16, product);
}

// c (16 x 8) += a (16 x 8) · b (8 x 8) of floats of which the instruction does not read the last 13 bits.
inline void onnxfuse_emulation_mma_tf32(const unsigned (&a)[4], const unsigned (&b)[2], float (&c)[4]) {
  const auto product = [](const emulation::Fragment* lanes, unsigned row, unsigned column, unsigned k) {
    const float left = __uint_as_float(lanes[row % 8 * 4 + k % 4].a[k / 4 * 2 + row / 8] & ~0x1fffu);
    const float right = __uint_as_float(lanes[column * 4 + k % 4].b[k / 4] & ~0x1fffu);
    return left * right;
  };
  onnxfuse_emulation_multiply(a, b, c, 8, product);
}

#endif  // ONNXFUSE_EMULATION_TENSOR_CORES_H_
