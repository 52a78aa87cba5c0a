// How a Program that reduces runs on inputs of certain shapes.
#ifndef ONNXFUSE_NEST_PLAN_H_
#define ONNXFUSE_NEST_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nest/nest_blocks.h"
#include "nest/program_part.h"
#include "nest/reduce_tensor.h"
#include "plan/plan.h"
#include "program/program.h"
#include "runtime/host.h"

namespace onnxfuse {

// Where a tensor is: which input or output, or at which byte of the scratch memory.
struct TensorPlace {
  Place place = Place::Scratch;
  size_t at = 0;
  size_t offset = 0;  // Input: bytes
};

// A reduction of whole tensors.
struct WholeReduction {
  TensorReduction reduction;
  TensorPlace in;
  TensorPlace out;
  size_t scratch = 0;
};

// A phase over whole tensors: what it computes, and then what is reduced.
struct WholePhase {
  ProgramPart part;
  std::shared_ptr<const Plan> plan;  // null where the part computes nothing
  std::vector<TensorPlace> inputs;
  std::vector<TensorPlace> outputs;
  size_t scratch = 0;
  std::vector<WholeReduction> reductions;
};

struct NestPlan {
  PlanKey key;
  std::vector<Shape> output_shapes;
  std::vector<size_t> input_bytes;
  std::vector<size_t> output_bytes;
  std::vector<WholePhase> phases;  // all of them, or what is computed before blocks
  std::unique_ptr<NestBlocks> blocks;
  size_t scratch_bytes = 0;
  size_t pointers = 0;  // that a phase needs room for
};

// Where an input's elements are read in their order, and nothing lies between them: `offset` is that of the first.
bool dense_input(const Value& value, const Shape& tensor, int64_t* offset);

// False if the shapes do not fit; then `error` says why, naming the line of the Program.
bool make_nest_plan(const Program& program, const PlanKey& key, NestPlan* plan, std::string* error);

// No output overlaps another one, or an input.  Throws Error.
void run_nest(const NestPlan& plan, const void* const* inputs, void* const* outputs, const Host& host);

}  // namespace onnxfuse

#endif  // ONNXFUSE_NEST_PLAN_H_
