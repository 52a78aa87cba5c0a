// A Program that a node carries, as it runs on the CPU.
#ifndef ONNXFUSE_NODE_PROGRAM_H_
#define ONNXFUSE_NODE_PROGRAM_H_

#include <utility>
#include <vector>

#include "runtime/program_kernel.h"

namespace onnxfuse {

class NodeProgram {
 public:
  explicit NodeProgram(Program program) : widened_(widen_half(program)), as_written_(std::move(program)) {}

  // The kernel of the Program to the letter.
  ProgramKernel& as_written() { return as_written_; }
  const Program& program() const { return as_written_.program(); }

  // The kernel for inputs of these ONNX element types, `first` and then `others`; null if they are not those of the
  // Program.  It is another one if ORT has made float of float16 tensors.
  ProgramKernel* kernel_for(int first, const int* others) {
    if (as_written_.takes(first, others)) return &as_written_;
    return widened_.takes(first, others) ? &widened_ : nullptr;
  }

 private:
  ProgramKernel widened_;
  ProgramKernel as_written_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_NODE_PROGRAM_H_
