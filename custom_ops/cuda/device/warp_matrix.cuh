// The matrix instructions of a warp: fragments from shared memory, and their products on tensor cores.

#ifndef ONNXFUSE_WARP_MATRIX_CUH_
#define ONNXFUSE_WARP_MATRIX_CUH_

namespace onnxfuse {

// Four 8 x 8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8.  Each lane gets elements
// 2 · (lane % 4) and the next of row lane / 4 of every matrix, or of its transpose.
template <bool Transposed> ONNXFUSE_DEVICE void load_matrices(const u16* row, u32 (&words)[4]) {
#ifdef ONNXFUSE_EMULATED
  onnxfuse_emulation_ldmatrix(row, words, Transposed);
#elif defined(__CUDA_ARCH__)
  const u32 address = static_cast<u32>(__cvta_generic_to_shared(row));
  if constexpr (Transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
  }
#endif
}

// c += a · b for fragments of 16 x 16, 16 x 8 and 16 x 8 elements.
template <class T>
ONNXFUSE_DEVICE void multiply_fragments(const u32 (&a)[4], u32 b0, u32 b1, f32 (&c)[4]) {
#ifdef ONNXFUSE_EMULATED
  const u32 b[2] = {b0, b1};
  onnxfuse_emulation_mma(a, b, c, [](u16 bits) { return widen(T{bits}); });
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  if constexpr (is_same<T, f16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#elif defined(__CUDA_ARCH__)
  static_assert(is_same<T, f16>, "compute capability 7.5 has no bf16");
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(b0));
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[2]), "r"(a[3]), "r"(b1));
#endif
}

// c += a · b for fragments of 16 x 8, 8 x 8 and 16 x 8 floats that to_tf32 has rounded.
ONNXFUSE_DEVICE void multiply_tf32(const u32 (&a)[4], const u32 (&b)[2], f32 (&c)[4]) {
#ifdef ONNXFUSE_EMULATED
  onnxfuse_emulation_mma_tf32(a, b, c);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

ONNXFUSE_DEVICE u32 to_tf32(f32 x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  u32 result;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(result) : "f"(x));
  return result;
#else
  return x == x ? (__float_as_uint(x) + 0x1000u) & 0xffffe000u : 0x7fffffffu;
#endif
}

}  // namespace onnxfuse

#endif  // ONNXFUSE_WARP_MATRIX_CUH_
