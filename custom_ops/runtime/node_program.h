// A Program that a node carries, as it runs on the CPU.
#ifndef ONNXFUSE_NODE_PROGRAM_H_
#define ONNXFUSE_NODE_PROGRAM_H_

#include <string>
#include <utility>
#include <vector>

#include "platform/error.h"
#include "runtime/program_kernel.h"

namespace onnxfuse {

template <class Kernel>
class NodeProgramOf {
 public:
  explicit NodeProgramOf(Program program) : widened_(widen_half(program)), as_written_(std::move(program)) {}

  // The kernel of the Program to the letter.
  Kernel& as_written() { return as_written_; }
  const Program& program() const { return as_written_.program(); }

  // The kernel for inputs of these ONNX element types, `first` and then `others`; null if they are not those of the
  // Program.  It is another one if ORT has made float of float16 tensors.
  Kernel* kernel_for(int first, const int* others) {
    if (takes(as_written_.program(), first, others)) return &as_written_;
    return takes(widened_.program(), first, others) ? &widened_ : nullptr;
  }

  // The same for all `types` of a node's inputs.  Throws Error if they are not those of the Program.
  Kernel& kernel_for(const std::vector<int>& types) {
    const int none = 0;  // of a Program without inputs no type is read
    const int* const own = types.empty() ? &none : types.data();
    if (Kernel* kernel = kernel_for(own[0], own + 1)) return *kernel;
    const Program& program = as_written_.program();
    size_t wrong = 0;
    while (types[wrong] == info(program.values[wrong].type).onnx) ++wrong;
    throw Error("input " + std::to_string(wrong) + " has ONNX element type " + std::to_string(types[wrong]) +
                ", but the program expects " + info(program.values[wrong].type).name);
  }

 private:
  // Whether the inputs' ONNX element types are those of the Program.
  static bool takes(const Program& program, int first, const int* others) {
    for (size_t i = 0; i < program.input_count; ++i) {
      if ((i == 0 ? first : others[i - 1]) != info(program.values[i].type).onnx) return false;
    }
    return true;
  }

  Kernel widened_;
  Kernel as_written_;
};

using NodeProgram = NodeProgramOf<ProgramKernel>;

}  // namespace onnxfuse

#endif  // ONNXFUSE_NODE_PROGRAM_H_
