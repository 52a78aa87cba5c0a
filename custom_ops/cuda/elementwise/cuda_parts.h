// The parts of a Program that one launch computes in ranges of blocks, each over an iteration space of its own.
#ifndef ONNXFUSE_CUDA_PARTS_H_
#define ONNXFUSE_CUDA_PARTS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "program/program.h"

namespace onnxfuse::cuda {

// `program` computes these outputs alone, each as a tensor of its own, of the inputs that they need.
struct Part {
  std::vector<size_t> inputs;   // their places among the whole Program's
  std::vector<size_t> outputs;  // likewise
  Program program;
};

// All of a Program as one part.
Part whole_part(const Program& program);

// The part that computes these outputs, of which there are as many as the numbers say.  False if it cannot be taken out
// of the Program; then `error` says why.
bool take_part(const Program& program, const std::vector<size_t>& outputs, Part* part, std::string* error);

// Whether an output is one of several that are parts of one tensor.
bool is_appended(const Program& program, size_t output);

}  // namespace onnxfuse::cuda

#endif  // ONNXFUSE_CUDA_PARTS_H_
