#include "plan/stage_builder.h"

#include <algorithm>

#include "figures/plan.h"
#include "plan/cost.h"
#include "platform/caches.h"
#include "program/program_shapes.h"

namespace onnxfuse {
namespace {

// Rows at least this long are cut into tiles of their own, so that what is constant along a row is a scalar.
constexpr int64_t kLongRow = 256;
// The same in blocks of rows, which are in the caches; and of whole vectors, where chains take one element for each row and
// nothing is repeated.
constexpr int64_t kLongBlockRow = 512;
constexpr int64_t kLongVectorRow = 1025;
// From this share of the caches on, results of blocks of rows, and of transposes, go past them: these wait for their memory else.
constexpr int64_t kWaitingShare = 2;
// Runs of at least so many elements of an output are cut into tiles of their own; of shorter ones a tile takes longer than to
// put them into their places out of a buffer.
constexpr int64_t kLongRun = 4096;
// A broadcast operand that repeats within this many elements is expanded once, not for every tile.
constexpr int64_t kMaxPeriod = 1024;
// Where runs of elements may begin anywhere, short rows with the same operands make rows of about this many elements.
constexpr int64_t kRepeatedRow = 512;

// Whether an instruction divides integers by something else than a constant, or by the constant 0.
bool may_divide_by_zero(const Program& program, const Value& value) {
  if (!info(value.op).divides) return false;
  const DType type = compute_type(value.op_type);
  if (type == DType::f32 || type == DType::f64) return false;
  const Value& divisor = program.values[value.operands[1]];
  return divisor.kind != Value::Kind::Const || divisor.bits == 0;
}

}  // namespace

StageBuilder::StageBuilder(const Program& program, const std::vector<Shape>& shapes,
                           const std::vector<int64_t>& scratch, const Shape& shape, const StageRequest& request,
                           Plan* plan)
    : program_(program),
      shapes_(shapes),
      scratch_(scratch),
      shape_(shape),
      request_(request),
      plan_(*plan),
      position_(program.values.size(), -1),
      slot_of_(program.values.size(), -1),
      scalars_slot_(program.values.size(), -1),
      source_slot_(program.values.size(), -1),
      uses_(program.values.size(), 0),
      kept_(program.values.size(), false),
      outputs_of_(program.values.size()) {}

void StageBuilder::build() {
  element_count(shape_, &stage_.elements);
  for (size_t i = 0; i < request_.instructions.size(); ++i) position_[request_.instructions[i]] = static_cast<int>(i);
  for (const uint16_t id : request_.kept) kept_[id] = true;
  for (const uint16_t output : request_.outputs) outputs_of_[program_.outputs[output]].push_back(output);
  find_sources();
  schedule();
  count_uses();
  emit_instructions();
  emit_passed_outputs();
  emit_deferred();
  place_buffers();
  choose_tile();
  list_moving_slots();
  record_uses();
  plan_.stages.push_back(std::move(stage_));
}

// The values that the stage reads but does not compute, and how each is indexed.
void StageBuilder::find_sources() {
  std::vector<uint16_t> sources;
  std::vector<bool> seen(program_.values.size());
  const auto add = [&](uint16_t id) {
    if (in_stage(id) || seen[id]) return;
    seen[id] = true;
    sources.push_back(id);
  };
  for (const uint16_t id : request_.instructions) {
    for (int i = 0; i < info(program_.values[id].op).arity; ++i) add(program_.values[id].operands[i]);
  }
  for (const uint16_t output : request_.outputs) add(program_.outputs[output]);

  std::vector<View> views;
  for (const uint16_t id : sources) views.push_back(view_of(id));
  for (const uint16_t output : request_.outputs) {
    View view;
    if (!is_in_runs(output) || plan_.parts[output].run < kLongRow || !view_of_runs(output, &view)) continue;
    has_runs_ = has_runs_ || plan_.parts[output].run >= kLongRun;
    views.push_back(view);
  }
  const Collapsed collapsed = collapse(shape_, views);
  stage_.dims = collapsed.dims;
  stage_.columns = stage_.dims.empty() ? 1 : stage_.dims.back();

  int64_t bytes = 0;
  int64_t apart = 0;  // of what is read in another order, or with gaps
  for (const uint16_t output : request_.outputs) {
    if (is_buffer(output)) continue;
    const auto size = static_cast<int64_t>(storage_size(program_.values[program_.outputs[output]].type));
    if (__builtin_add_overflow(bytes, stage_.elements * size, &bytes)) bytes = INT64_MAX;
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    Slot slot;
    slot.strides = collapsed.strides[i];
    const Value& value = program_.values[sources[i]];
    slot.place = value.kind == Value::Kind::Const   ? Place::Const
                 : value.kind == Value::Kind::Input ? Place::Input
                 : value.kind == Value::Kind::Index ? Place::Coordinates
                                                    : Place::Scratch;
    slot.index = sources[i];
    slot.size = static_cast<uint8_t>(slot.place == Place::Input ? storage_size(value.type) : compute_size(value.type));
    slot.offset = slot.place == Place::Scratch ? static_cast<size_t>(scratch_[sources[i]])
                                               : static_cast<size_t>(views[i].offset) * slot.size;
    int64_t count = 0;
    element_count(views[i].shape, &count);
    if (value.swaps_halves) slot.half = shapes_[sources[i]].from_back(0) / 2;
    const bool in_memory = slot.place != Place::Coordinates;
    const bool whole = in_memory && slot.half == 0 && count == stage_.elements && is_dense(slot);
    // Coordinates may themselves be an output, with as many elements as that has.
    const bool fixed = count == 1 && (in_memory || stage_.elements == 1);
    slot.access = whole ? Access::Whole : fixed ? Access::Fixed : Access::Gathered;
    if (!in_memory && fixed) {  // it is 0
      slot.place = Place::Derived;
      slot.index = static_cast<uint32_t>(stage_.derived.size());
      stage_.derived.push_back(0);
    }
    int64_t& read = slot.access == Access::Whole ? bytes : apart;
    if (in_memory && count == stage_.elements && __builtin_add_overflow(read, count * slot.size, &read)) read = INT64_MAX;
    source_slot_[sources[i]] = static_cast<int>(stage_.slots.size());
    stage_.slots.push_back(std::move(slot));
  }
  find_rows();
  for (Slot& slot : stage_.slots) {
    if (slot.access == Access::Gathered) merge_dims(&slot);
  }
  large_ = apart > last_level_bytes() / (by_blocks() || transposed_ ? kWaitingShare : 1) - bytes;
  stage_.turns = bytes > level2_bytes() && !large_;
  stage_.fetches = transposed_ && apart > level2_bytes() - bytes;
}

// Whether an output is a part of a tensor, whose elements do not all lie side by side.
bool StageBuilder::is_in_runs(size_t output) const {
  if (plan_.parts.empty()) return false;
  const OutputPart& part = plan_.parts[output];
  return part.run < stage_.elements && part.run != part.step;
}

// Such a part as the stage's dimensions have it.  False if a run ends within one of them.
bool StageBuilder::view_of_runs(size_t output, View* view) const {
  const OutputPart& part = plan_.parts[output];
  *view = whole_view(shape_);
  int64_t inside = 1;  // elements of the dimensions that a run has
  for (int d = shape_.rank; d-- > 0;) {
    const auto at = static_cast<size_t>(d);
    int64_t& stride = view->strides[at];
    if (inside >= part.run) {
      if (inside != part.run) return false;
      stride = stride / part.run * part.step;
    } else {
      inside *= shape_.dims[at];
    }
  }
  return inside == part.run;
}

// What the stage reads of a source.
View StageBuilder::view_of(uint16_t id) const {
  const Value& value = program_.values[id];
  View view;
  if (value.kind == Value::Kind::Index) {  // a vector along the axis
    view.shape.rank = -value.axis;
    std::fill_n(view.shape.dims.begin(), view.shape.rank, 1);
    view.shape.dims[0] = shapes_[id].from_back(-value.axis - 1);
    view.strides[0] = 1;
    return view;
  }
  if (!is_view(value)) return whole_view(shapes_[id]);
  std::string problem;
  input_view(value, plan_.key.shapes[id], &view, &problem);  // resolve_shapes has done it before
  return view;
}

// Whether the data has the stage's elements in the stage's order, and nothing between them.
bool StageBuilder::is_dense(const Slot& slot) const {
  int64_t step = 1;
  for (size_t d = stage_.dims.size(); d-- > 0; step *= stage_.dims[d]) {
    if (slot.strides[d] != step) return false;
  }
  return true;
}

// Whether what a column reads lies side by side, and a tile of 16 rows is not larger than the level 2 cache.
bool StageBuilder::is_transposed(const Slot& slot) const {
  const size_t rank = stage_.dims.size();
  return slot.access == Access::Gathered && slot.place == Place::Input && slot.half == 0 && rank > 1 &&
         slot.strides[rank - 2] == 1 && slot.strides[rank - 1] > 1 && stage_.columns <= kLongestTransposedRow;
}

// Whether tiles end with a row, so that operands are read where they lie, or are the same for many rows.
void StageBuilder::find_rows() {
  const bool anywhere = plan_.key.anywhere;
  transposed_ = std::any_of(stage_.slots.begin(), stage_.slots.end(),
                            [&](const Slot& slot) { return is_transposed(slot); });
  if (transposed_ && (!anywhere || by_blocks())) return;
  const auto lanes = static_cast<int64_t>(kernels().floats);
  const bool repeats_columns = std::any_of(stage_.slots.begin(), stage_.slots.end(), [](const Slot& slot) {
    return slot.access == Access::Gathered && slot.strides.back() != 0;
  });
  const bool has_links = stage_.columns % lanes == 0 && !repeats_columns;
  const int64_t long_row = plan_.key.rows ? 1 : !by_blocks() ? kLongRow : has_links ? kLongVectorRow : kLongBlockRow;
  if (stage_.columns < long_row && (!anywhere || by_blocks())) return;
  // A view of a tensor may have no two elements of a row next to each other, or not in their order.
  const auto has_rows = [](const Slot& slot) {
    return slot.access == Access::Gathered && slot.place != Place::Coordinates && slot.strides.back() <= 1 &&
           slot.half == 0;
  };
  const auto repeats = [&](const Slot& slot) {
    return !has_rows(slot) ||
           std::all_of(slot.strides.begin(), slot.strides.end() - 1, [](int64_t stride) { return stride == 0; });
  };
  std::vector<Slot>& slots = stage_.slots;
  stage_.by_rows = has_runs_ || std::any_of(slots.begin(), slots.end(), has_rows);
  if (!stage_.by_rows) return;
  repeated_ = anywhere && !by_blocks() && 2 * stage_.columns <= kRepeatedRow && std::all_of(slots.begin(), slots.end(), repeats);
  if (repeated_) {
    stage_.columns *= kRepeatedRow / stage_.columns;
    return;
  }
  for (Slot& slot : slots) {
    if (!has_rows(slot)) continue;
    slot.access = Access::Row;
    slot.by_column = slot.strides.back() != 0;
  }
}

// One where the slot steps through dimensions alike, whatever other slots do.
void StageBuilder::merge_dims(Slot* slot) const {
  std::vector<int64_t> strides;
  for (size_t d = 0; d < stage_.dims.size(); ++d) {
    const int64_t size = stage_.dims[d];
    const int64_t stride = slot->strides[d];
    if (!strides.empty() && strides.back() == stride * size) {
      slot->dims.back() *= size;
      strides.back() = stride;
    } else {
      slot->dims.push_back(size);
      strides.push_back(stride);
    }
  }
  slot->strides = std::move(strides);
}

// The slot holds what all rows read, an element for each column.
void StageBuilder::read_by_column(uint16_t index) {
  Slot& slot = stage_.slots[index];
  slot.access = Access::Row;
  slot.by_column = true;
  slot.strides.assign(stage_.dims.size(), 0);
}

// Depth first from the results, the longer branch last, so that a value is used as soon as it is computed: chains
// stay together and few buffers are alive at once.
void StageBuilder::schedule() {
  std::vector<int> depth(program_.values.size(), 0);
  for (const uint16_t id : request_.instructions) {
    const Value& value = program_.values[id];
    for (int i = 0; i < info(value.op).arity; ++i) depth[id] = std::max(depth[id], depth[value.operands[i]] + 1);
  }
  std::vector<bool> done(program_.values.size());
  std::vector<std::pair<uint16_t, bool>> stack;  // value, and whether its operands have been visited
  const auto visit = [&](uint16_t root) {
    stack.push_back({root, false});
    while (!stack.empty()) {
      const auto [id, expanded] = stack.back();
      stack.pop_back();
      if (!in_stage(id) || done[id]) continue;
      if (expanded) {
        done[id] = true;
        order_.push_back(id);
        continue;
      }
      stack.push_back({id, true});
      const Value& value = program_.values[id];
      uint16_t operands[3];
      const int arity = info(value.op).arity;
      std::copy_n(value.operands, arity, operands);
      std::stable_sort(operands, operands + arity, [&](uint16_t a, uint16_t b) { return depth[a] > depth[b]; });
      for (int i = 0; i < arity; ++i) stack.push_back({operands[i], false});  // the last pushed is visited first
    }
  };
  for (const uint16_t id : request_.instructions) {
    if (kept_[id] || !outputs_of_[id].empty()) visit(id);
  }
}

void StageBuilder::count_uses() {
  for (const uint16_t id : order_) {
    const Value& value = program_.values[id];
    for (int i = 0; i < info(value.op).arity; ++i) ++uses_[value.operands[i]];
  }
}

uint16_t StageBuilder::new_buffer(size_t size) {
  Slot slot;
  slot.size = static_cast<uint8_t>(size);
  stage_.slots.push_back(std::move(slot));
  return static_cast<uint16_t>(stage_.slots.size() - 1);
}

uint16_t StageBuilder::output_slot(size_t output) {
  Slot slot;
  slot.place = Place::Output;
  slot.access = Access::Whole;
  slot.index = static_cast<uint32_t>(output);
  slot.size = static_cast<uint8_t>(storage_size(program_.values[program_.outputs[output]].type));
  if (is_in_runs(output)) {
    slot.access = is_direct(output) ? Access::Runs : Access::Scattered;
    slot.run = plan_.parts[output].run;
    slot.step = plan_.parts[output].step;
  }
  stage_.slots.push_back(std::move(slot));
  return static_cast<uint16_t>(stage_.slots.size() - 1);
}

// Whether a tile's elements lie side by side in an output.
bool StageBuilder::is_direct(size_t output) const {
  return !is_in_runs(output) || (stage_.by_rows && plan_.parts[output].run % stage_.columns == 0);
}

bool StageBuilder::is_scalar(uint16_t id) const {
  if (in_stage(id) || stage_.elements == 1) return false;
  const Slot& slot = stage_.slots[source_slot_[id]];
  return slot.access == Access::Fixed || (slot.access == Access::Row && !slot.by_column);
}

// The slot that holds a value in its compute type; emits what brings a source there.
uint16_t StageBuilder::operand(uint16_t id) {
  if (slot_of_[id] >= 0) return static_cast<uint16_t>(slot_of_[id]);
  auto slot = static_cast<uint16_t>(source_slot_[id]);
  const DType type = program_.values[id].type;
  const Access access = stage_.slots[slot].access;
  bool once = access == Access::Fixed;  // the same in every tile
  if (access == Access::Gathered) {
    // The data repeats after the dimensions inside the outermost one that it has.
    const std::vector<int64_t>& strides = stage_.slots[slot].strides;
    const std::vector<int64_t>& dims = stage_.slots[slot].dims;
    size_t outermost = 0;
    while (outermost + 1 < dims.size() && strides[outermost] == 0) ++outermost;
    int64_t period = 1;
    for (size_t d = outermost; d < dims.size() && period <= kMaxPeriod; ++d) period *= dims[d];
    // Tiles that end with a row begin anywhere, and so do runs that are no multiple.
    const bool aligned = !plan_.key.anywhere || (by_blocks() && plan_.key.multiple % period == 0);
    once = repeated_ || (!stage_.by_rows && aligned && period <= kMaxPeriod);
    if (once && !repeated_) period_ = std::max(period_, period);
    Step step;
    const bool counted = stage_.slots[slot].place == Place::Coordinates;
    step.kind = counted ? Step::Kind::Coordinates : Step::Kind::Gather;
    step.type = compute_type(type);
    step.in[0] = slot;
    step.out = new_buffer(stage_.slots[slot].size);
    if (repeated_) read_by_column(step.out);
    (once ? stage_.prologue : stage_.steps).push_back(step);
    slot = step.out;
  }
  const bool is_input = stage_.slots[source_slot_[id]].place == Place::Input;
  const Kernel load = is_input ? kernels().loads[static_cast<int>(type)] : nullptr;
  if (load != nullptr) {
    Step step;
    step.kernel = load;
    step.in[0] = slot;
    step.out = new_buffer(compute_size(type));
    step.single = is_scalar(id);
    if (repeated_ && access == Access::Gathered) read_by_column(step.out);
    (once ? stage_.prologue : stage_.steps).push_back(step);
    slot = step.out;
  }
  slot_of_[id] = slot;
  return slot;
}

void StageBuilder::emit_instructions() {
  for (size_t at = 0; at < order_.size();) {
    const size_t length = chain_length(at);
    if (length > 0) {
      emit_chain(at, length);
      at += length;
    } else {
      emit_kernel(order_[at++]);
    }
  }
}

// Where a step puts a value: straight into scratch or an output where possible, else into a buffer.
StageBuilder::Destination StageBuilder::destination(uint16_t id, bool can_stream, bool read_later) {
  const DType type = program_.values[id].type;
  Destination result;
  if (kept_[id]) {
    Slot slot;
    slot.place = Place::Scratch;
    slot.access = Access::Whole;
    slot.size = static_cast<uint8_t>(compute_size(type));
    slot.offset = static_cast<size_t>(scratch_[id]);
    stage_.slots.push_back(std::move(slot));
    result.slot = static_cast<int>(stage_.slots.size() - 1);
  } else if (!outputs_of_[id].empty() && compute_type(type) == type) {
    // What stays in the caches is written there, and copied from there.
    const auto& outputs = outputs_of_[id];
    const auto stays = std::find_if(outputs.begin(), outputs.end(), [&](uint16_t o) { return is_buffer(o); });
    const auto direct = std::find_if(outputs.begin(), outputs.end(), [&](uint16_t o) { return is_direct(o); });
    const size_t output = stays != outputs.end() ? *stays : direct != outputs.end() ? *direct : outputs[0];
    const bool stream = streams(output);
    // Data that went past the caches is slow to read back.
    if (is_direct(output) && !is_deferred(output) && (!stream || (can_stream && !read_later && outputs_of_[id].size() == 1))) {
      result.slot = output_slot(output);
      result.stream = stream;
    }
  }
  if (result.slot < 0) result.slot = new_buffer(compute_size(type));
  return result;
}

void StageBuilder::emit_kernel(uint16_t id) {
  const Value& value = program_.values[id];
  const int arity = info(value.op).arity;
  Step step;
  step.arity = static_cast<uint8_t>(arity);
  unsigned scalars = 0;
  for (int i = 0; i < arity; ++i) {
    step.in[i] = operand(value.operands[i]);
    if (is_scalar(value.operands[i])) scalars |= 1u << i;
    --uses_[value.operands[i]];
  }
  if (may_divide_by_zero(program_, value)) {
    step.divisor = static_cast<uint8_t>(compute_size(value.op_type));
    step.one_divisor = is_scalar(value.operands[1]);
  }
  step.kernel = value.op == Op::Cast
                    ? kernels().find_cast(program_.values[value.operands[0]].type, value.op_type)
                    : kernels().find_op(value.op, compute_type(value.op_type), scalars);
  const Destination to = destination(id, false, uses_[id] > 0);
  step.out = static_cast<uint16_t>(to.slot);
  slot_of_[id] = to.slot;
  stage_.tile_cost += cost_of(value.op, compute_type(value.op_type));
  stage_.steps.push_back(step);
  emit_stores(id, to.slot);
}

// Stores a value to the outputs that it was not written to directly.
void StageBuilder::emit_stores(uint16_t id, int written) {
  const DType type = program_.values[id].type;
  for (const uint16_t output : outputs_of_[id]) {
    const Slot& direct = stage_.slots[written];
    if (direct.place == Place::Output && direct.index == output) continue;
    Step step;
    step.kind = Step::Kind::Kernel;
    step.kernel = kernels().stores[static_cast<int>(type)];
    if (step.kernel == nullptr) step.kind = streams(output) ? Step::Kind::StreamCopy : Step::Kind::Copy;
    step.in[0] = static_cast<uint16_t>(written);
    const bool scatters = !is_direct(output);
    if (scatters && step.kernel == nullptr) step.kind = Step::Kind::Scatter;
    if (!is_deferred(output) && (!scatters || step.kernel == nullptr)) {
      step.out = output_slot(output);
      stage_.steps.push_back(step);
      continue;
    }
    // Converted or copied to a buffer now, and stored at the end: an input still needs the output's memory, or the store has
    // to convert what another step scatters.
    if (step.kernel != nullptr || direct.place == Place::Input || direct.place == Place::Output) {
      step.kind = step.kernel != nullptr ? Step::Kind::Kernel : Step::Kind::Copy;
      step.out = new_buffer(storage_size(type));
      stage_.steps.push_back(step);
      step.in[0] = step.out;
    }
    step.kind = scatters ? Step::Kind::Scatter : Step::Kind::Copy;
    step.out = output_slot(output);
    (is_deferred(output) ? deferred_ : stage_.steps).push_back(step);
  }
}

// Outputs that are an input, a constant or another stage's value.
void StageBuilder::emit_passed_outputs() {
  for (const uint16_t output : request_.outputs) {
    const uint16_t id = program_.outputs[output];
    if (in_stage(id) || outputs_of_[id].empty()) continue;
    emit_stores(id, operand(id));
    outputs_of_[id].clear();
  }
}

void StageBuilder::emit_deferred() {
  stage_.steps.insert(stage_.steps.end(), deferred_.begin(), deferred_.end());
}

}  // namespace onnxfuse
