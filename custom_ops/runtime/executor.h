// Runs a Plan over the elements of tensors.  What does so throws Error if there is no memory for what a thread works in.
#ifndef ONNXFUSE_EXECUTOR_H_
#define ONNXFUSE_EXECUTOR_H_

#include <cstddef>
#include <cstdint>

#include "plan/plan.h"
#include "program/program.h"
#include "runtime/host.h"

namespace onnxfuse {

struct Tensors {
  const void* const* inputs;
  void* const* outputs;  // where each begins, be it a tensor or a part of one (find_outputs)
  char* scratch;  // Plan::scratch_bytes, aligned to a cache line
};

// Runs the tiles `first` up to but not including `last` of one stage, on the calling thread.
void run_tiles(const Program& program, const Stage& stage, const Tensors& tensors, int64_t first, int64_t last,
               bool backward = false);

// A tensor that moves on by so many bytes from one run of elements to the next, for it has less, or more, between them than
// the tensor that runs are counted in.
struct MovedTensor {
  const void** pointer;
  ptrdiff_t by;
};

// Runs of `length` elements, of which each begins `step` elements behind the one before.
struct ElementRuns {
  int64_t first;
  int64_t length;
  int64_t step = 0;
  int64_t count = 1;
  // An input, and an output, that move on by so many bytes from run to run, for they have less, or more, between them
  // than the tensor.
  const void** moving = nullptr;
  void** moving_output = nullptr;
  ptrdiff_t by = 0;
  // Any others.
  MovedTensor* moved = nullptr;
  size_t moved_count = 0;
};

// What a slot holds before any run; null if its data is elsewhere.
inline const uint64_t* constant_of(const Program& program, const Stage& stage, const Slot& slot) {
  if (slot.place == Place::Const) return &program.values[slot.index].bits;
  return slot.place == Place::Derived ? &stage.derived[slot.index] : nullptr;
}

// In elements, that of a row of the stage; a slot of Access::Row has at least two dimensions, the columns among them.
inline int64_t row_offset(const Stage& stage, const Slot& slot, int64_t row) {
  int64_t offset = 0;
  for (size_t d = stage.dims.size() - 2; d > 0; --d) {
    offset += row % stage.dims[d] * slot.strides[d];
    row /= stage.dims[d];
  }
  return offset + row * slot.strides[0];
}

// Where element 0 of a tensor would be of which only some are in memory, and `element` at `memory`: Programs look for
// elements where they are in the whole tensor.
inline void* whole_tensor(const void* memory, int64_t element, size_t bytes) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(memory) - static_cast<uintptr_t>(element) * bytes);
}

// Runs one stage for some elements, on the calling thread.  The plan must have been made for runs that begin anywhere.
void run_elements(const Program& program, const Stage& stage, const Tensors& tensors, const ElementRuns& runs);

// The same again and again, of tensors that move but do not change where all elements read the same.  It lives in memory of
// its own, of so many bytes, aligned to a cache line; nothing is to be done when that is given up.
class ElementRunner;
size_t runner_bytes(const Stage& stage);
ElementRunner* make_runner(const Program& program, const Stage& stage, const Tensors& tensors, void* memory);
void run_elements(ElementRunner* runner, const ElementRuns& runs);

// Whether the stage is one chain of float32, from its first input to its only output, whose operands are scalars, or with
// `tensors` tensors of its shape: then it can run on the results of tiles (TileTarget).
bool is_chain_of_tiles(const Program& program, const Stage& stage, bool tensors);

// Whether such a chain does no more than to keep its input within bounds; and these, of which one may be no number.
bool only_bounds_tiles(const Program& program, const Stage& stage);
Bounds bounds_of_tiles(const Program& program, const Stage& stage, const void* const* inputs);

// The links of such a chain for results of which the first is element `first` of the output.  `links` has room for
// kMaxChainLinks; returns how many there are.
size_t links_of_tiles(const Program& program, const Stage& stage, const void* const* inputs, int64_t first,
                      ChainLink* links);

void run_plan(const Program& program, const Plan& plan, const Tensors& tensors, const Host& host);

}  // namespace onnxfuse

#endif  // ONNXFUSE_EXECUTOR_H_
