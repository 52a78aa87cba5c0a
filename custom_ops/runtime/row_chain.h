// A stage that is one chain of float32, run over rows, which may be reduced while the chain's results are in registers.
#ifndef ONNXFUSE_ROW_CHAIN_H_
#define ONNXFUSE_ROW_CHAIN_H_

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"
#include "plan/plan.h"
#include "program/program.h"
#include "runtime/executor.h"

namespace onnxfuse {

// Whether a stage can run so, over rows of `n` elements or parts of them: each operand of its chain is found by the same step
// from one row to the next, at least for some rows.  Its output must be one of the Program's, in memory of its own.
bool is_row_chain(const Program& program, const Stage& stage, int64_t n);

// Which rows to run, and what they come to.
struct RowReduction {
  int64_t first;  // element of the stage at which the first begins
  int64_t rows;
  int64_t n;  // elements of each, which are all of a row, or a part of one row
  Op combine;
  Mapped map;
  bool stores;  // whether the chain's results are written as well
  float* results;  // null if they are not reduced
};

void run_row_chain(const Program& program, const Stage& stage, const Tensors& tensors, const RowReduction& reduction);

}  // namespace onnxfuse

#endif  // ONNXFUSE_ROW_CHAIN_H_
