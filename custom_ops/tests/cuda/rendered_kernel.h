// Lets the stand-in driver launch a rendered kernel in the emulation of CUDA (tests/cuda/emulation/emulation.h, to be
// included before).  The sizes of the operands, which the emulation checks, follow from the launch's parameters.
#ifndef ONNXFUSE_TESTS_RENDERED_KERNEL_H_
#define ONNXFUSE_TESTS_RENDERED_KERNEL_H_

#include <algorithm>
#include <string>
#include <vector>

#include "tests/cuda/contract_decoder.h"
#include "tests/cuda/emulated_launch.h"

namespace rendered {

// `access`: a letter for each input, then for each output.  `places`: the offset and size of each parameter, ended by a
// size of 0.  `sizes`: bytes of an element of each operand.
inline const char* run(const char* kernel, const std::string& access, size_t inputs, bool wide, const size_t* places,
                       const size_t* sizes, const EmulatedLaunch* launch) {
  const contract::Decoder decoder(access, wide, launch->parameters, launch->bytes);
  if (!decoder.complete()) return "the parameters do not end where they should";
  std::vector<void*> arguments;
  for (; places[1] != 0; places += 2) arguments.push_back(const_cast<unsigned char*>(launch->parameters + places[0]));
  std::vector<emulation::Operand> operands;
  for (size_t k = 0; k < access.size(); ++k) {
    int64_t begin = 0;
    int64_t end = 0;
    for (uint64_t i = 0; i < decoder.count(); ++i) {
      begin = std::min(begin, decoder.index(k, i));
      end = std::max(end, decoder.index(k, i) + 1);
    }
    const uint64_t address = decoder.address(k) + static_cast<uint64_t>(begin) * sizes[k];
    const uint64_t bytes = static_cast<uint64_t>(end - begin) * sizes[k];
    operands.push_back({k < inputs ? "an input" : "an output", address, bytes, k >= inputs});
  }
  return onnxfuse_emulate(kernel, arguments.data(), launch->grid, launch->block, operands.data(), operands.size());
}

}  // namespace rendered

#endif  // ONNXFUSE_TESTS_RENDERED_KERNEL_H_
