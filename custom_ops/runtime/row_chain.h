// A stage that is one chain of float32, run over rows, which may be reduced while the chain's results are in registers.
#ifndef ONNXFUSE_ROW_CHAIN_H_
#define ONNXFUSE_ROW_CHAIN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "plan/plan.h"
#include "program/program.h"
#include "runtime/executor.h"

namespace onnxfuse {

// Whether a stage can run so, over rows of `n` elements or parts of them: each operand of its chain is found by the same step
// from one row to the next, at least for some rows.  Its output must be one of the Program's, in memory of its own.
bool is_row_chain(const Program& program, const Stage& stage, int64_t n);

// Where an operand is: at the first row of some, or a part of a row, that begins with element `first` of the stage, in the
// memory of tensor `tensor`, counted through the inputs and then the outputs, or of `memory` where that is negative.
struct RowOperand {
  int tensor = -1;
  const char* memory = nullptr;
  ptrdiff_t begin = 0;       // bytes
  ptrdiff_t by_element = 0;  // times `first`
  ptrdiff_t by_row = 0;      // times the row
  ptrdiff_t step = 0;        // from one row to the next
  bool restarts = false;     // whether a group of rows has this memory, and the next one again
};

// The operands of a row chain that are found by the same steps in all rows: of its input, of its output, and two of each link.
// Empty if some are not, as those that are broadcast between others.
std::vector<RowOperand> row_operands(const Program& program, const Stage& stage, size_t inputs, int64_t n);

// Likewise of each step of a stage over one value of each row: chains of float32 over values that lie side by side.  `buffer` is
// the tensor where what steps hand on is.  False if the stage is something else.
bool value_operands(const Program& program, const Stage& stage, size_t inputs, int buffer,
                    std::vector<std::vector<RowOperand>>* steps);

// Which rows to run, and what they come to.
struct RowReduction {
  int64_t first;  // element of the stage at which the first begins
  int64_t row;    // and which row that is
  int64_t rows;
  int64_t n;      // elements of each
  bool parts;     // whether they are not rows, but parts of one
  Op combine;
  Mapped map;
  bool stores;     // whether the chain's results are written as well
  float* results;  // null if they are not reduced
  float* squares;  // the sums of squares, beside plain sums; null where nobody asks for them
  FetchedRange* fetched;  // what is fetched meanwhile
  size_t fetched_count;
};

// `tensors` are pointers to the inputs and then to the outputs.  `operands` are those of row_operands.
void run_row_chain(const Program& program, const Stage& stage, const std::vector<RowOperand>& operands,
                   const void* const* tensors, size_t inputs, const RowReduction& reduction);

// Where the tensors of a pass are, inputs first.
struct RowTensors {
  const void* const* at;
  int64_t first;  // element, and row, of the stage where the pass begins
  int64_t row;
  int64_t part;  // the elements of a part, where what is computed is not rows but parts of one; else 0
};

// Sets a pass to one step of a stage, and links and their steps, of which there is room for as many as the step has.
void place_row_pass(const Stage& stage, const Step& step, const std::vector<RowOperand>& operands, const RowTensors& tensors,
                    RowPass* pass, ChainLink* links, OperandSteps* steps);

}  // namespace onnxfuse

#endif  // ONNXFUSE_ROW_CHAIN_H_
