// The execution plan of a Program for one set of input shapes: stages of equal shape, each a list of steps over tiles.
#ifndef ONNXFUSE_PLAN_H_
#define ONNXFUSE_PLAN_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "program/program.h"
#include "program/program_shapes.h"
#include "program/shape.h"

namespace onnxfuse {

// Where the data behind a slot lives.
enum class Place : uint8_t {
  Input,
  Output,
  Scratch,
  Const,
  Derived,
  Buffer,
  Coordinates,  // nowhere: an element is its own offset
};

// How a tile that begins at element `start` of the stage finds its part of a slot's data.
enum class Access : uint8_t {
  Whole,     // at `start`: the data has the stage's elements in the stage's order
  Fixed,     // at the beginning: one scalar, a constant, or a tile buffer
  Row,       // at the offset of the stage's row, plus the column if the data has one for each column
  Scalars,   // at the stage's row, of which each has one element
  Runs,      // at `start` of a part of a tensor, of whose runs of elements a tile has one, or a part of one
  Scattered, // nowhere: a Scatter step puts what is in a buffer into such runs
  Gathered,  // nowhere: a Gather or Coordinates step puts it into a buffer
};

struct Slot {
  Place place = Place::Buffer;
  Access access = Access::Fixed;
  bool by_column = false;         // Row: one element for each column of the row, not one for the row
  uint8_t size = 0;               // bytes of an element
  uint32_t index = 0;             // Input, Output, Derived: which; Const, Coordinates: id of the value
  size_t offset = 0;              // Input, Scratch, Buffer: bytes
  int64_t half = 0;               // Gathered: elements of each half of a row, if these are to be swapped
  std::vector<int64_t> strides;   // Row, Gathered: in elements, for each dimension
  std::vector<int64_t> dims;      // Gathered: the stage's, of which those are one that the slot steps through alike
  int64_t run = 0;                // Runs, Scattered: elements that lie side by side
  int64_t step = 0;               // Runs, Scattered: elements from one run to the next
};

struct Step {
  enum class Kind : uint8_t { Kernel, Chain, Gather, Coordinates, Copy, StreamCopy, Scatter };

  Kind kind = Kind::Kernel;
  bool single = false;   // one element: the operand is a scalar for the tile
  Stores stores = Stores::Plain;  // Chain
  DType type{};              // Coordinates
  uint8_t arity = 1;
  uint8_t divisor = 0;       // Kernel: bytes of each integer that it divides by, of which none may be 0; 0: it divides by none
  bool one_divisor = false;  // for all elements
  Kernel kernel = nullptr;
  ChainKernel chain = nullptr;
  uint16_t out = 0;      // slots
  uint16_t in[3] = {};
  uint32_t first = 0;    // Chain: its links in Stage::links
  uint32_t count = 0;
};

struct PlannedLink {
  Link link;
  uint16_t slot;
  uint16_t slot2;
};

// Steps over all elements of one shape.  Tiles are consecutive runs of elements; where `by_rows` they end with a row
// of `columns` elements at the latest.
struct Stage {
  int64_t elements = 0;
  bool by_rows = false;
  bool turns = false;         // every other run is better from the last tile to the first
  bool seamless = false;      // tiles are there to be shared among threads alone: those that follow one another run as one
  bool fetches = false;       // what the next tile reads transposed is fetched while a tile reads it
  int64_t columns = 0;        // size of the innermost collapsed dimension, or a multiple of it
  int64_t tile = 0;           // elements of a tile
  int64_t tiles_per_row = 1;  // by_rows
  int64_t tiles = 0;
  double tile_cost = 0;       // nanoseconds, roughly
  size_t buffer_bytes = 0;
  std::vector<int64_t> dims;  // collapsed
  std::vector<Slot> slots;
  std::vector<uint16_t> moving;  // slots whose data is at another place for each tile: Whole, Row and Scalars
  std::vector<Step> prologue;  // run once for a run of tiles: what is the same in each
  std::vector<Step> steps;
  std::vector<PlannedLink> links;
  std::vector<uint64_t> derived;  // what was computed from constants
};

// What to know about an input when an output may share its memory.
struct InputUse {
  size_t bytes = 0;
  int stages = 0;          // how many stages read it
  int stage = -1;          // the last of them
  bool whole = false;      // read only tile by tile at the place of the tile, and not a part of it alone
  int last_read = -1;      // moment of the last step or link that reads it
};

struct OutputUse {
  size_t bytes = 0;        // from its first to its last
  bool whole = true;       // written only tile by tile at the place of the tile
  int stage = -1;          // -1: nothing to compute (no elements)
  int first_write = -1;    // moment of the first step or link that writes it
};

struct PlanKey {
  std::vector<Shape> shapes;
  uint64_t aliased = 0;   // outputs that share memory with an input: nothing is streamed then
  uint64_t deferred = 0;  // those of them to write only when a tile has read everything
  bool anywhere = false;  // runs of elements may begin anywhere (run_elements); nothing is streamed then
  // With `anywhere`, not 0: runs begin at multiples of so many elements, and results are streamed, but for those of outputs
  // from `buffers` on, which stay in the caches.
  int64_t multiple = 0;
  size_t buffers = SIZE_MAX;
  bool rows = false;  // likewise: operands are read where they lie however short rows are (row_chain.h)

  bool operator==(const PlanKey& other) const {
    return aliased == other.aliased && deferred == other.deferred && anywhere == other.anywhere &&
           multiple == other.multiple && buffers == other.buffers && rows == other.rows && shapes == other.shapes;
  }
};

struct Plan {
  PlanKey key;
  std::vector<Shape> output_shapes;  // of the tensors
  std::vector<OutputPart> parts;     // the place of each output, where tensors are written in parts; or none at all
  std::vector<Stage> stages;  // in the order to run
  std::vector<InputUse> inputs;
  std::vector<OutputUse> outputs;
  size_t scratch_bytes = 0;  // for the values that one stage computes and another reads
};

// Null if the shapes do not fit; then `error` says why, naming the line of the Program.
std::shared_ptr<const Plan> make_plan(const Program& program, const PlanKey& key, std::string* error);

// The same where the shapes of all values and of the outputs' tensors are known (resolve_shapes, resolve_outputs).
std::shared_ptr<const Plan> make_plan(const Program& program, const PlanKey& key, const std::vector<Shape>& shapes,
                                      const std::vector<Shape>& outputs, std::string* error,
                                      std::vector<OutputPart> parts = {});

// Sets `outputs`, of as many as the Program has, to where each begins in its tensor.
void find_outputs(const Program& program, const Plan& plan, void* const* tensors, void** outputs);

}  // namespace onnxfuse

#endif  // ONNXFUSE_PLAN_H_
