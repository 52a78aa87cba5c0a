// What compute capability 8.0 brought: copies from global to shared memory that need no registers and are not waited for
// until their data is used (cp.async).

#ifndef ONNXFUSE_ASYNC_COPY_CUH_
#define ONNXFUSE_ASYNC_COPY_CUH_

namespace onnxfuse {

// Whether there are asynchronous copies, and tensor cores for bf16 and TF32.  The emulation has the value that
// __CUDA_ARCH__ would have.
#ifdef ONNXFUSE_EMULATED
constexpr bool is_ampere = ONNXFUSE_EMULATED >= 800;
#elif defined(__CUDA_ARCH__)
constexpr bool is_ampere = __CUDA_ARCH__ >= 800;
#else
constexpr bool is_ampere = false;
#endif

// Copies Count elements of 4, 8 or 16 bytes together, or zeros if they are not `inside`.
template <int Count, class W, class T, class Index>
ONNXFUSE_DEVICE void copy_async(W* to, const T* base, Index first, bool inside) {
  constexpr int bytes = Count * static_cast<int>(sizeof(T));
  static_assert(bytes == 4 || bytes == 8 || bytes == 16, "sizes that cp.async copies");
  if (inside) ONNXFUSE_CHECK(base, first, Count, bytes, false);
  const T* from = inside ? base + first : base;
#ifdef ONNXFUSE_EMULATED
  onnxfuse_emulation_cp_async(to, from, bytes, inside);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const u32 address = static_cast<u32>(__cvta_generic_to_shared(to));
  const u32 read = inside ? bytes : 0;
  if constexpr (bytes == 16) {  // what is copied once a block need not stay in the L1 cache
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(read) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(address), "l"(from), "n"(bytes), "r"(read)
                 : "memory");
  }
#endif
}

// Ends a group of copies; a group may be empty.
ONNXFUSE_DEVICE void commit_copies() {
#ifdef ONNXFUSE_EMULATED
  onnxfuse_emulation_cp_async_commit();
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most Groups of the thread's latest groups are under way.
template <int Groups> ONNXFUSE_DEVICE void wait_for_copies() {
#ifdef ONNXFUSE_EMULATED
  onnxfuse_emulation_cp_async_wait(Groups);
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(Groups) : "memory");
#endif
}

}  // namespace onnxfuse

#endif  // ONNXFUSE_ASYNC_COPY_CUH_
