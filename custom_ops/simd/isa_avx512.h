// What the files of kernels for AVX-512 have in common.
#define ONNXFUSE_ISA avx512
#define ONNXFUSE_ISA_NAME "avx512"
#define ONNXFUSE_VECTOR_BYTES 64
