// A Program that reduces, in blocks: all phases of some rows, or columns, one after the other, so that what they keep stays in
// the caches.
#ifndef ONNXFUSE_NEST_BLOCKS_H_
#define ONNXFUSE_NEST_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "nest/program_part.h"
#include "nest/reduce_tensor.h"
#include "plan/plan.h"
#include "program/program.h"
#include "runtime/host.h"
#include "runtime/row_chain.h"

namespace onnxfuse {

// Where a block finds a tensor.
struct BlockPlace {
  enum class Kind : uint8_t {
    Input,    // which input, at byte `offset`
    Output,   // which output
    Scratch,  // a whole tensor, at a byte of the memory of the run
    Kept,     // the elements of the block, at a byte of its own memory
    InPlace,  // the elements of the block, where those of an output will be
    Part,     // those of a part of it, likewise
    Result,   // the results of its rows, likewise
  };

  Kind kind = Kind::Kept;
  size_t at = 0;
  size_t offset = 0;
  size_t size = 0;  // bytes of an element
};

// Instructions over the elements of a block, or over its results.
struct BlockPass {
  ProgramPart part;
  std::shared_ptr<const Plan> plan;  // of one stage; null where there is none
  std::vector<BlockPlace> inputs;
  std::vector<BlockPlace> outputs;
  // Whether it is one chain over rows (row_chain.h); how many of the phase's reductions, the first ones, take its results from
  // registers, one, or a sum and then one of squares; and whether these are read later, and so stored as well.
  bool is_row_chain = false;
  std::vector<RowOperand> row_operands;  // (row_operands)
  // Of what the chain takes for a row the elements, where a row has several: runs between which operands change.
  int64_t run_in_row = 0;
  std::vector<std::vector<RowOperand>> value_operands;  // of results, where rows go in groups (value_operands)
  size_t buffer = 0;  // likewise, of the thread's memory where what its steps hand on is
  size_t joined = 0;
  bool stores = true;
  // Of the memory that a thread runs blocks in, the bytes where its runner is, and the pointers to its tensors.
  size_t runner = 0;
  size_t pointers = 0;
};

struct BlockReduction {
  uint16_t value = 0;  // of the Program, that it is
  Mapped map = Mapped::Plain;
  Reduce reduce{};
  DType type{};
  ReduceKernels kernels{};
  BlockPlace in;
  BlockPlace out;
};

struct BlockPhase {
  BlockPass results;
  BlockPass elements;
  std::vector<BlockReduction> reductions;
  // Whether the parts of a block are computed by one chain over rows, and no more is done with their elements.
  bool parts_are_rows = false;
};

// Of so many inputs at most the memory is fetched while chains over rows are computed.
constexpr size_t kMostFetched = 8;

struct NestBlocks {
  NestGeometry geometry;
  std::vector<BlockPhase> phases;
  int64_t block_rows = 1;
  // Of the rows of a block so many go through all phases in one call of a kernel, and then as many again; 0: all of a block
  // through one phase after the other.
  int64_t group_rows = 0;
  int64_t block_columns = 1;
  int64_t blocks = 0;
  int64_t tasks = 1;
  // Of columns, the segments of a block that are computed and reduced together; 0 where blocks have no groups of them.
  int64_t group = 0;
  // Of a long row, the elements in a part, or the segments; 0 where blocks have no parts.
  int64_t part = 0;
  int64_t parts = 0;
  // Whether threads share the parts of a block, for there are few blocks.  Each phase computes anew what it reads then.
  bool shared = false;
  int64_t part_tasks = 1;
  size_t kept_bytes = 0;     // of a block, or a part
  size_t result_bytes = 0;   // of a block
  size_t partial_bytes = 0;  // of a block: of the parts of all reductions of a phase, or of the segments of one
  size_t runner_bytes = 0;   // of a thread: what runs the passes
  // Where rows go in groups: how many passes a kernel makes, the links that they have in all, and where in the thread's memory.
  size_t row_passes = 0;
  size_t row_links = 0;
  size_t row_memory = 0;
  // Inputs whose memory is fetched a block ahead, and of how many elements, or segments of columns, together; 0: a group ahead.
  std::vector<BlockPlace> fetched;
  int64_t fetched_at_once = 0;
  // By how many chains over rows, or passes of a group, a little with each of their vectors; 0: so many elements before each pass.
  int64_t fetching_chains = 0;
};

// Sets `blocks` to how the Program runs in blocks.  `before` are places of what is computed before, over whole tensors, by
// value; those of others have no size.  False if it cannot: then it runs phase by phase over whole tensors.
bool plan_blocks(const NestShapes& shapes, const Phases& phases, const std::vector<BlockPlace>& before, NestBlocks* blocks);

void run_blocks(const NestBlocks& blocks, const void* const* inputs, void* const* outputs, char* scratch, const Host& host);

}  // namespace onnxfuse

#endif  // ONNXFUSE_NEST_BLOCKS_H_
