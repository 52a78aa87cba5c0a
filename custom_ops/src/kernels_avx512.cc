#define ONNXFUSE_ISA avx512
#define ONNXFUSE_ISA_NAME "avx512"
#define ONNXFUSE_VECTOR_BYTES 64
#include "kernels.inc"
