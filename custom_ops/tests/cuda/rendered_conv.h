// Lets the stand-in driver launch a rendered convolution in the emulation of CUDA (tests/cuda/emulation/emulation.h, to
// be included before).  The sizes of the tensors, which the emulation checks, follow from the launch's parameters, read
// here a second time from cuda_conv_parameters.h.
#ifndef ONNXFUSE_TESTS_RENDERED_CONV_H_
#define ONNXFUSE_TESTS_RENDERED_CONV_H_

#include <mutex>
#include <string>
#include <vector>

#include "tests/cuda/contract_decoder.h"
#include "tests/cuda/emulated_launch.h"

namespace rendered {

struct Conv {
  std::string prologue;               // access letters
  std::string epilogue;
  bool wide;                          // 64-bit indices
  uint64_t in_channels;
  uint64_t out_channels;
  uint64_t weights;                   // elements
  std::vector<size_t> element_sizes;  // bytes: X, W, the operands, the outputs
};

// `places`: the offset and size of each parameter, ended by a size of 0.
inline const char* run(const char* kernel, bool is_sum, const Conv& conv, const size_t* places,
                       const EmulatedLaunch* launch) {
  contract::Reader reader{launch->parameters};
  const std::string letters = conv.prologue + conv.epilogue;
  const size_t word = conv.wide ? 8 : 4;
  std::vector<uint64_t> addresses;
  for (size_t t = 0; t < conv.element_sizes.size(); ++t) addresses.push_back(reader.take(8));
  const uint64_t workspace = reader.take(8);
  uint64_t numbers[11];
  for (uint64_t& number : numbers) number = reader.take(word);
  const uint64_t splits = numbers[10];
  const uint64_t in_plane = numbers[1] * numbers[2] * numbers[3];
  const uint64_t out_plane = numbers[4] * numbers[5] * numbers[6];
  for (int divider = 0; divider < 3; ++divider) contract::Divider(&reader, conv.wide);
  const uint64_t count = numbers[0] * conv.out_channels * out_plane;

  std::vector<uint64_t> elements{numbers[0] * conv.in_channels * in_plane, conv.weights};
  for (size_t k = 0; k < letters.size(); ++k) {
    const bool of_input = k < conv.prologue.size();
    const uint64_t* const sizes = numbers + (of_input ? 1 : 4);
    const uint64_t channels = of_input ? conv.in_channels : conv.out_channels;
    const uint64_t space[5] = {numbers[0], channels, sizes[0], sizes[1], sizes[2]};
    uint64_t reach = 1;
    switch (letters[k]) {
      case 'l': reach = numbers[0] * channels * (of_input ? in_plane : out_plane); break;
      case 'c': reach = channels; break;
      case 'o': reach = numbers[0] * channels; break;
      case 'g':
        for (const uint64_t size : space) reach += (size - 1) * reader.take(word);
        break;
      default: break;
    }
    elements.push_back(reach);
  }
  if (reader.next != launch->parameters + launch->bytes) return "the parameters do not end where they should";
  if ((splits > 1) != (workspace != 0)) return "there is a workspace for one split, or none for several";
  if (workspace % 16 != 0) return "the workspace is not aligned";

  std::vector<void*> arguments;
  for (; places[1] != 0; places += 2) arguments.push_back(const_cast<unsigned char*>(launch->parameters + places[0]));
  std::vector<emulation::Operand> operands;
  const size_t inputs = elements.size();
  for (size_t t = 0; t < inputs; ++t) {
    operands.push_back({"an input", addresses[t], elements[t] * conv.element_sizes[t], false});
  }
  const bool writes_parts = splits > 1 && !is_sum;
  if (splits > 1) operands.push_back({"the workspace", workspace, splits * count * sizeof(float), writes_parts});
  for (size_t t = inputs; t < addresses.size() && !writes_parts; ++t) {
    operands.push_back({"an output", addresses[t], count * conv.element_sizes[t], true});
  }
  static std::mutex one_at_a_time;  // the emulation has one shared memory
  const std::lock_guard<std::mutex> lock(one_at_a_time);
  return onnxfuse_emulate(kernel, arguments.data(), launch->grid, launch->block, operands.data(), operands.size());
}

}  // namespace rendered

#endif  // ONNXFUSE_TESTS_RENDERED_CONV_H_
