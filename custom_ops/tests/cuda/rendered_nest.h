// Lets the stand-in driver launch a rendered kernel that reduces in the emulation of CUDA (tests/cuda/emulation/emulation.h,
// to be included before).  The sizes of the tensors, which the emulation checks, follow from the launch's parameters, read
// here a second time from cuda_nest_parameters.h.
#ifndef ONNXFUSE_TESTS_RENDERED_NEST_H_
#define ONNXFUSE_TESTS_RENDERED_NEST_H_

#include <mutex>
#include <string>
#include <vector>

#include "tests/cuda/contract_decoder.h"
#include "tests/cuda/emulated_launch.h"

namespace rendered {

struct Nest {
  size_t inputs;
  size_t indices;
  size_t outputs;
  bool wide;  // 64-bit indices
  uint64_t steps;
  uint64_t reductions;
  std::vector<size_t> element_bits;  // inputs, outputs
  std::vector<size_t> tables;        // inputs of which rows are named
};

// `places`: the offset and size of each parameter, ended by a size of 0.
inline const char* run(const char* function, const Nest& nest, const size_t* places, const EmulatedLaunch* launch) {
  contract::Reader reader{launch->parameters};
  const size_t word = nest.wide ? 8 : 4;
  std::vector<uint64_t> addresses;
  for (size_t t = 0; t < nest.inputs + nest.outputs; ++t) addresses.push_back(reader.take(8));
  const uint64_t workspace = reader.take(8);
  const uint64_t rows = reader.take(word);
  const uint64_t length = reader.take(word);
  const uint64_t splits = reader.take(word);
  const uint64_t chunk = reader.take(word);
  const uint64_t row_rank = reader.take(4);
  const uint64_t rank = reader.take(4);
  uint64_t sizes[16];
  for (uint64_t& size : sizes) size = contract::Divider(&reader, nest.wide).divisor;
  std::vector<uint64_t> reach;  // elements of each operand
  for (size_t k = 0; k < nest.inputs + nest.indices + nest.outputs; ++k) {
    uint64_t last = reader.take(word);
    for (size_t d = 0; d < 16; ++d) {
      const uint64_t step = reader.take(word);
      if (d >= rank && step != 0) return "a step along a dimension that there is not";
      last += (sizes[d] - 1) * step;
    }
    reach.push_back(length == 0 && k < nest.inputs ? 0 : last + 1);
  }
  for (const size_t input : nest.tables) {
    const uint64_t rows_of_table = reader.take(word);
    const uint64_t step = reader.take(word);
    reach[input] = rows_of_table == 0 ? 0 : reach[input] + (rows_of_table - 1) * step;
  }
  if (reader.next != launch->parameters + launch->bytes) return "the parameters do not end where they should";
  uint64_t product = 1;
  for (size_t d = 0; d < row_rank; ++d) product *= sizes[d];
  if (length != 0 && product != length) return "a row has other dimensions than elements";
  if ((splits > 1) != (nest.steps != 0)) return "rows are shared by a kernel that does not, or not by one that does";
  if ((splits > 1) != (workspace != 0)) return "there is a workspace for one split, or none for several";
  if (splits * chunk < length || (splits - 1) * chunk >= (length == 0 ? 1 : length)) return "the parts are no row";
  if (workspace % 8 != 0) return "the workspace is not aligned";

  std::vector<void*> arguments;
  for (; places[1] != 0; places += 2) arguments.push_back(const_cast<unsigned char*>(launch->parameters + places[0]));
  std::vector<emulation::Operand> operands;
  for (size_t t = 0; t < addresses.size(); ++t) {
    const bool is_output = t >= nest.inputs;
    const uint64_t bytes = (reach[is_output ? t + nest.indices : t] * nest.element_bits[t] + 7) / 8;
    const uint64_t kind = !is_output ? 0 : splits > 1 || length == 0 ? 2 : 1;  // 2: of which it need not write all
    operands.push_back({is_output ? "an output" : "an input", addresses[t], bytes, kind});
  }
  for (uint64_t r = 0; splits > 1 && r < nest.reductions; ++r) {
    const uint64_t bytes = 8 * splits * rows;
    operands.push_back({"the workspace", workspace + r * bytes, bytes, 0});
    operands.push_back({"the workspace", workspace + r * bytes, bytes, 2});
  }
  static std::mutex one_at_a_time;  // the emulation has one shared memory
  const std::lock_guard<std::mutex> lock(one_at_a_time);
  return onnxfuse_emulate(function, arguments.data(), launch->grid, launch->block, operands.data(), operands.size());
}

}  // namespace rendered

#endif  // ONNXFUSE_TESTS_RENDERED_NEST_H_
