// Lets the stand-in driver launch a rendered kernel of attention in the emulation of CUDA (tests/cuda/emulation/emulation.h,
// to be included before).  The sizes of the tensors, which the emulation checks, follow from the launch's parameters, read
// here a second time from cuda_attention_parameters.h.
#ifndef ONNXFUSE_TESTS_RENDERED_ATTENTION_H_
#define ONNXFUSE_TESTS_RENDERED_ATTENTION_H_

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "tests/cuda/emulated_launch.h"

namespace rendered {

struct AttentionLaunch {
  uint64_t tensors[6], workspace;
  int64_t strides[4][4], masks[2][4];  // of Q, K, V, the output; of the mask and the choices
  int32_t batch, key_heads, queries, keys, size, value_size, mask_batch, splits, chunk;
  uint32_t words[4], group[3];
};

// `joins`: whether the kernel is that which joins the splits; `element`: bytes.
inline const char* run_attention(const char* function, bool joins, uint64_t element, const EmulatedLaunch* launch) {
  AttentionLaunch all;
  if (launch->bytes != sizeof all) return "the parameters do not end where they should";
  std::memcpy(&all, launch->parameters, sizeof all);
  const int64_t heads = int64_t{all.key_heads} * all.group[0];
  const int64_t counts[4][4] = {{heads, all.queries, all.size},
                                {all.key_heads, all.keys, all.size},
                                {all.key_heads, all.keys, all.value_size},
                                {heads, all.queries, all.value_size}};
  uint64_t reach[6] = {};  // elements
  for (int t = 0; t < 4; ++t) {
    const int64_t* step = all.strides[t];
    const int64_t last = step[0] + (all.batch - 1) * step[1] + (counts[t][0] - 1) * step[2] + (counts[t][1] - 1) * step[3];
    reach[t < 3 ? t : 5] = counts[t][1] == 0 ? 0 : static_cast<uint64_t>(last + counts[t][2]);
  }
  for (int m = 0; m < 2; ++m) {
    const int64_t* step = all.masks[m];
    const int64_t batches = m == 0 ? all.mask_batch : all.batch;
    reach[3 + m] = static_cast<uint64_t>((batches - 1) * step[0] + (heads - 1) * step[1] + (all.queries - 1) * step[2] +
                                         (all.keys - 1) * step[3] + 1);
  }
  for (int t = 0; t < 3; ++t) {
    for (int u = 0; u < 3; ++u) {
      if (all.tensors[t] == all.tensors[u]) reach[t] = std::max(reach[t], reach[u]);  // parts of one tensor
    }
  }
  if ((all.splits > 1) != (all.workspace != 0)) return "there is a workspace for one split, or none for several";
  const bool covers = int64_t{all.splits} * all.chunk >= all.keys && int64_t{all.splits - 1} * all.chunk < std::max(all.keys, 1);
  if (!covers) return "the parts are not all keys";
  if (joins && all.splits == 1) return "there is nothing to join";
  std::vector<emulation::Operand> operands;
  for (int t = 0; t < 5; ++t) {
    if (all.tensors[t] != 0) operands.push_back({"an input", all.tensors[t], reach[t] * (t == 4 ? 1 : element), 0});
  }
  const uint64_t rows = static_cast<uint64_t>(all.batch * heads * all.queries);
  const uint64_t parts = 4 * rows * static_cast<uint64_t>(all.splits) * static_cast<uint64_t>(all.value_size + 3);
  if (all.splits > 1) operands.push_back({"the workspace", all.workspace, parts, !joins});
  if (all.splits == 1 || joins) operands.push_back({"the output", all.tensors[5], reach[5] * element, 1});
  std::vector<void*> arguments;
  for (size_t p = 0; p < 8; ++p) arguments.push_back(const_cast<unsigned char*>(launch->parameters + 8 * p));
  static std::mutex one_at_a_time;  // the emulation has one shared memory
  const std::lock_guard<std::mutex> lock(one_at_a_time);
  return onnxfuse_emulate(function, arguments.data(), launch->grid, launch->block, operands.data(), operands.size());
}

}  // namespace rendered

#endif  // ONNXFUSE_TESTS_RENDERED_ATTENTION_H_
