// What the files of kernels for NEON have in common.
#define ONNXFUSE_ISA neon
#define ONNXFUSE_ISA_NAME "neon"
#define ONNXFUSE_VECTOR_BYTES 16
