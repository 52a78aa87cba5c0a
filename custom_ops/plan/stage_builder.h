// Turns the instructions of one shape into the steps of a Stage.
#ifndef ONNXFUSE_STAGE_BUILDER_H_
#define ONNXFUSE_STAGE_BUILDER_H_

#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "program/program.h"
#include "program/shape.h"

namespace onnxfuse {

// What one stage has to compute.
struct StageRequest {
  std::vector<uint16_t> instructions;  // live, in Program order
  std::vector<uint16_t> kept;          // those of them that other stages read
  std::vector<uint16_t> outputs;       // indices of the outputs of this shape
};

class StageBuilder {
 public:
  // `scratch` holds for each value that crosses stages its place in the scratch memory, else -1.
  StageBuilder(const Program& program, const std::vector<Shape>& shapes, const std::vector<int64_t>& scratch,
               const Shape& shape, const StageRequest& request, Plan* plan);

  // Appends the stage to the plan.
  void build();

 private:
  struct Destination {
    int slot = -1;
    bool stream = false;
  };

  void find_sources();
  View view_of(uint16_t id) const;
  bool is_dense(const Slot& slot) const;
  bool is_transposed(const Slot& slot) const;
  void find_rows();
  void merge_dims(Slot* slot) const;
  void read_by_column(uint16_t index);
  void schedule();
  void count_uses();
  void emit_instructions();
  size_t chain_length(size_t at);
  void emit_kernel(uint16_t id);
  void emit_chain(size_t at, size_t length);
  void emit_stores(uint16_t id, int written);
  void emit_passed_outputs();
  void emit_deferred();
  void keep_in_registers(const std::vector<int>& local, std::vector<PlannedLink>* links) const;
  PlannedLink link_for(uint16_t id, int accumulated);
  PlannedLink division_by(uint16_t divisor);
  bool has_row_link(Op op, uint16_t id) const;
  uint16_t row_scalars(uint16_t id);
  template <class T> uint16_t derived(const T& value);
  uint16_t operand(uint16_t id);
  Destination destination(uint16_t id, bool can_stream, bool read_later);
  uint16_t new_buffer(size_t size);
  uint16_t output_slot(size_t output);
  bool is_in_runs(size_t output) const;
  bool view_of_runs(size_t output, View* view) const;
  bool is_direct(size_t output) const;
  bool is_scalar(uint16_t id) const;
  bool is_chainable(uint16_t id) const;
  bool can_extend(uint16_t last, uint16_t next) const;
  bool in_stage(uint16_t id) const { return position_[id] >= 0; }
  bool is_deferred(size_t output) const { return plan_.key.deferred != 0 && plan_.key.deferred >> output & 1; }
  // Whether runs of elements are of rows of any length, whose tiles are cut as those of whole tensors.
  bool by_blocks() const { return plan_.key.anywhere && plan_.key.multiple > 0; }
  bool is_buffer(size_t output) const { return output >= plan_.key.buffers; }
  // Memory that an input shares is in the caches already, and streaming chains may not write what they read.
  bool streams(size_t output) const {
    return large_ && plan_.key.aliased == 0 && (!plan_.key.anywhere || by_blocks()) && !is_buffer(output);
  }
  void choose_tile();
  void list_moving_slots();
  void place_buffers();
  void record_uses();

  const Program& program_;
  const std::vector<Shape>& shapes_;
  const std::vector<int64_t>& scratch_;
  const Shape& shape_;
  const StageRequest& request_;
  Plan& plan_;
  Stage stage_;
  std::vector<int> position_;      // of a value among the stage's instructions, -1: not one
  std::vector<int> slot_of_;       // slot that holds a value in its compute type, -1: none yet
  std::vector<int> scalars_slot_;  // slot of a source of one element for each row as that, -1: none yet
  std::vector<int> source_slot_;   // slot of a source as it is stored, -1: not a source
  std::vector<int> uses_;          // operands still to be read from a value
  std::vector<bool> kept_;         // values that other stages read
  std::vector<std::vector<uint16_t>> outputs_of_;  // outputs that are a value
  std::vector<uint16_t> order_;    // instructions as scheduled
  std::vector<Step> deferred_;     // stores to run after all other steps
  int64_t period_ = 1;             // a tile is a multiple of it
  bool transposed_ = false;        // an operand's columns lie side by side: tiles have several rows
  bool has_runs_ = false;          // an output's elements lie in long runs, of which rows are parts
  bool repeated_ = false;          // a row is several of the tensor's, with operands that a buffer repeats
  bool large_ = false;             // does not fit in the caches
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_STAGE_BUILDER_H_
