// What the files of kernels for any machine have in common.
#define ONNXFUSE_ISA baseline
#define ONNXFUSE_ISA_NAME "baseline"
#define ONNXFUSE_VECTOR_BYTES 16
