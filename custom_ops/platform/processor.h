// What the processor has.
#ifndef ONNXFUSE_PROCESSOR_H_
#define ONNXFUSE_PROCESSOR_H_

namespace onnxfuse {

// Vector instructions that the processor has and of which the system saves the registers for a thread.
struct Features {
  bool avx2 = false;    // with FMA and F16C
  bool avx512 = false;  // F, BW, DQ and VL, and all of avx2
  bool vnni = false;    // products of bytes: AVX512-VNNI beside avx512, or AVX-VNNI beside avx2
};

Features find_features();

}  // namespace onnxfuse

#endif  // ONNXFUSE_PROCESSOR_H_
