// What the files of kernels for AVX2 have in common.
#define ONNXFUSE_ISA avx2
#define ONNXFUSE_ISA_NAME "avx2"
#define ONNXFUSE_VECTOR_BYTES 32
