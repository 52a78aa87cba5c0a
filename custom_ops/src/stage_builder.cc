#include "stage_builder.h"

#include <unistd.h>

#include <algorithm>

namespace onnxfuse {
namespace {

// Rows at least this long are cut into tiles of their own, so that what is constant along a row is a scalar.
constexpr int64_t kLongRow = 256;
// A broadcast operand that repeats within this many elements is expanded once, not for every tile.
constexpr int64_t kMaxPeriod = 1024;
// A tile's share of all buffers and tensors should stay in the level 1 cache.
constexpr int64_t kTileBytes = 24 * 1024;
constexpr int64_t kMinTile = 64;
constexpr int64_t kMaxTile = 4096;
constexpr size_t kCacheLine = 64;
// An instruction is at most two links: itself, and one that keeps its value.
constexpr size_t kMaxChainInstructions = kMaxChainLinks / 2;

size_t round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// The size beyond which results are not worth keeping in the caches.
int64_t cache_bytes() {
  static const int64_t bytes = [] {
    int64_t size = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
    size = sysconf(_SC_LEVEL3_CACHE_SIZE);
#endif
    return size > 0 ? std::clamp<int64_t>(size, 4 << 20, 64 << 20) : 32 << 20;
  }();
  return bytes;
}

// Rough nanoseconds an element takes, to decide how much work is worth a thread.
double cost_of(Op op, DType type) {
  switch (op) {
    case Op::Exp: case Op::Log: case Op::Tanh: case Op::Sigmoid: case Op::Erf: case Op::Elu: case Op::Softplus:
    case Op::Mish: case Op::Gelu: case Op::GeluTanh:
      return type == DType::f64 ? 6.0 : 1.0;
    case Op::Sin: case Op::Cos: case Op::Tan: case Op::Asin: case Op::Acos: case Op::Atan: case Op::Sinh:
    case Op::Cosh: case Op::Asinh: case Op::Acosh: case Op::Atanh: case Op::Pow: case Op::Fmod: case Op::Mod:
      return 6.0;
    case Op::Div:
      return type == DType::f32 || type == DType::f64 ? 0.3 : 3.0;
    default:
      return 0.02 * static_cast<double>(compute_size(type));
  }
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

  std::vector<Shape> shapes;
  for (const uint16_t id : sources) shapes.push_back(shapes_[id]);
  const Collapsed collapsed = collapse(shape_, shapes);
  stage_.dims = collapsed.dims;
  stage_.columns = stage_.dims.empty() ? 1 : stage_.dims.back();

  int64_t bytes = 0;
  for (const uint16_t output : request_.outputs) {
    bytes += stage_.elements * static_cast<int64_t>(storage_size(program_.values[program_.outputs[output]].type));
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    Slot slot;
    slot.strides = collapsed.strides[i];
    const Value& value = program_.values[sources[i]];
    slot.place = value.kind == Value::Kind::Const   ? Place::Const
                 : value.kind == Value::Kind::Input ? Place::Input
                                                    : Place::Scratch;
    slot.index = sources[i];
    slot.size = static_cast<uint8_t>(slot.place == Place::Input ? storage_size(value.type) : compute_size(value.type));
    slot.offset = slot.place == Place::Scratch ? static_cast<size_t>(scratch_[sources[i]]) : 0;
    int64_t count = 0;
    element_count(shapes[i], &count);
    slot.access = count == stage_.elements ? Access::Whole : count == 1 ? Access::Fixed : Access::Gathered;
    if (slot.access == Access::Whole) bytes += count * slot.size;
    if (slot.access == Access::Gathered && stage_.columns >= kLongRow) {
      slot.access = Access::Row;
      slot.by_column = slot.strides.back() != 0;
      stage_.by_rows = true;
    }
    source_slot_[sources[i]] = static_cast<int>(stage_.slots.size());
    stage_.slots.push_back(std::move(slot));
  }
  large_ = bytes > cache_bytes();
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
  stage_.slots.push_back(std::move(slot));
  return static_cast<uint16_t>(stage_.slots.size() - 1);
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
    const auto& strides = stage_.slots[slot].strides;
    size_t outermost = 0;
    while (strides[outermost] == 0) ++outermost;
    int64_t period = 1;
    for (size_t d = outermost; d < strides.size() && period <= kMaxPeriod; ++d) period *= stage_.dims[d];
    once = period <= kMaxPeriod;
    if (once) period_ = std::max(period_, period);
    Step step;
    step.kind = Step::Kind::Gather;
    step.in[0] = slot;
    step.out = new_buffer(stage_.slots[slot].size);
    (once ? stage_.prologue : stage_.steps).push_back(step);
    slot = step.out;
  }
  const Kernel load = stage_.slots[source_slot_[id]].place == Place::Input ? kernels().loads[static_cast<int>(type)] : nullptr;
  if (load != nullptr) {
    Step step;
    step.kernel = load;
    step.in[0] = slot;
    step.out = new_buffer(compute_size(type));
    step.single = is_scalar(id);
    (once ? stage_.prologue : stage_.steps).push_back(step);
    slot = step.out;
  }
  slot_of_[id] = slot;
  return slot;
}

bool StageBuilder::is_chainable(uint16_t id) const {
  const Value& value = program_.values[id];
  const DType type = compute_type(value.op_type);
  if (type != DType::f32 && type != DType::f64) return false;
  if (stage_.elements == 1) return false;
  switch (value.op) {
    case Op::Add: case Op::Sub: case Op::Mul: case Op::Div: case Op::Min: case Op::Max:
      return true;
    case Op::Neg: case Op::Abs: case Op::Reciprocal: case Op::Relu: case Op::HardSwish:
      return true;
    case Op::LeakyRelu:
      return !is_scalar(value.operands[0]);
    case Op::HardSigmoid:
      return !is_scalar(value.operands[0]) && is_scalar(value.operands[1]) && is_scalar(value.operands[2]);
    default:
      return false;
  }
}

// Whether `next` can follow `last` in a chain: it takes the value from the register once, or squares it.
bool StageBuilder::can_extend(uint16_t last, uint16_t next) const {
  const Value& value = program_.values[next];
  if (!is_chainable(next) || compute_type(value.op_type) != compute_type(program_.values[last].type)) return false;
  const int arity = info(value.op).arity;
  const auto times = std::count(value.operands, value.operands + arity, last);
  if (value.op == Op::Mul && times == 2) return true;
  if (times != 1) return false;
  const bool first_only = value.op == Op::LeakyRelu || value.op == Op::HardSigmoid;
  return !first_only || value.operands[0] == last;
}

size_t StageBuilder::chain_length(size_t at) {
  if (!is_chainable(order_[at])) return 0;
  size_t length = 1;
  while (length < kMaxChainInstructions && at + length < order_.size() &&
         can_extend(order_[at + length - 1], order_[at + length])) {
    ++length;
  }
  return length;
}

void StageBuilder::emit_instructions() {
  for (size_t at = 0; at < order_.size();) {
    const size_t length = chain_length(at);
    const bool streamed = length == 1 && !outputs_of_[order_[at]].empty() && streams();
    if (length >= 2 || streamed) {
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
    const size_t output = outputs_of_[id][0];
    const bool stream = streams();
    // Data that went past the caches is slow to read back.
    if (!is_deferred(output) && (!stream || (can_stream && !read_later && outputs_of_[id].size() == 1))) {
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
  const int type = static_cast<int>(compute_type(value.op_type));
  step.kernel = value.op == Op::Cast
                    ? kernels().casts[static_cast<int>(compute_type(program_.values[value.operands[0]].type))]
                                     [static_cast<int>(value.op_type)]
                    : kernels().ops[static_cast<int>(value.op)][type][scalars];
  const Destination to = destination(id, false, uses_[id] > 0);
  step.out = static_cast<uint16_t>(to.slot);
  slot_of_[id] = to.slot;
  stage_.tile_cost += cost_of(value.op, compute_type(value.op_type));
  stage_.steps.push_back(step);
  emit_stores(id, to.slot);
}

// The link that applies instruction `id` to its operand number `accumulated`.
PlannedLink StageBuilder::link_for(uint16_t id, int accumulated) {
  const Value& value = program_.values[id];
  PlannedLink result{Link::Neg, 0, 0};
  if (value.op == Op::HardSigmoid) {
    return {Link::HardSigmoidSS, operand(value.operands[1]), operand(value.operands[2])};
  }
  if (info(value.op).arity == 1) {
    result.link = value.op == Op::Neg          ? Link::Neg
                  : value.op == Op::Abs        ? Link::Abs
                  : value.op == Op::Reciprocal ? Link::Reciprocal
                  : value.op == Op::Relu       ? Link::Relu
                                               : Link::HardSwish;
    return result;
  }
  const uint16_t other = value.operands[1 - accumulated];
  const bool scalar = is_scalar(other);
  result.slot = operand(other);
  const auto pick = [&](Link s, Link v, Link reversed_s, Link reversed_v) {
    return accumulated == 0 ? (scalar ? s : v) : (scalar ? reversed_s : reversed_v);
  };
  switch (value.op) {
    case Op::Add: result.link = pick(Link::AddS, Link::AddV, Link::AddS, Link::AddV); break;
    case Op::Sub: result.link = pick(Link::SubS, Link::SubV, Link::RSubS, Link::RSubV); break;
    case Op::Mul: result.link = pick(Link::MulS, Link::MulV, Link::MulS, Link::MulV); break;
    case Op::Div: result.link = pick(Link::DivS, Link::DivV, Link::RDivS, Link::RDivV); break;
    case Op::Min: result.link = pick(Link::MinS, Link::MinV, Link::RMinS, Link::RMinV); break;
    case Op::Max: result.link = pick(Link::MaxS, Link::MaxV, Link::RMaxS, Link::RMaxV); break;
    default: result.link = pick(Link::LeakyReluS, Link::LeakyReluV, Link::LeakyReluS, Link::LeakyReluV); break;
  }
  return result;
}

void StageBuilder::emit_chain(size_t at, size_t length) {
  std::vector<PlannedLink> links;
  std::vector<std::pair<uint16_t, int>> written;  // values that must be stored further, and their slots
  Step step;
  step.kind = Step::Kind::Chain;
  for (size_t i = 0; i < length; ++i) {
    const uint16_t id = order_[at + i];
    const Value& value = program_.values[id];
    const int arity = info(value.op).arity;
    for (int k = 0; k < arity; ++k) --uses_[value.operands[k]];
    if (i == 0) {
      const int accumulated = is_scalar(value.operands[0]) ? 1 : 0;
      step.in[0] = operand(value.operands[accumulated]);
      links.push_back(link_for(id, accumulated));
    } else {
      const uint16_t last = order_[at + i - 1];
      if (arity == 2 && value.operands[0] == last && value.operands[1] == last) {
        links.push_back({Link::MulSelf, 0, 0});
      } else {
        links.push_back(link_for(id, value.operands[0] == last ? 0 : 1));
      }
    }
    stage_.tile_cost += 0.4 * cost_of(value.op, compute_type(value.op_type));

    const bool last_link = i + 1 == length;
    const int later = uses_[id] - (last_link ? 0 : static_cast<int>(std::count(program_.values[order_[at + i + 1]].operands,
                                                             program_.values[order_[at + i + 1]].operands +
                                                                 info(program_.values[order_[at + i + 1]].op).arity, id)));
    if (!last_link && later == 0 && !kept_[id] && outputs_of_[id].empty()) continue;
    const Destination to = destination(id, last_link, later > 0);
    slot_of_[id] = to.slot;
    written.push_back({id, to.slot});
    if (last_link) {
      step.out = static_cast<uint16_t>(to.slot);
      step.stream = to.stream;
    } else {
      links.push_back({Link::Keep, static_cast<uint16_t>(to.slot), 0});
    }
  }
  step.chain = kernels().chains[static_cast<int>(compute_type(program_.values[order_[at]].op_type))];
  step.first = static_cast<uint32_t>(stage_.links.size());
  step.count = static_cast<uint32_t>(links.size());
  stage_.links.insert(stage_.links.end(), links.begin(), links.end());
  stage_.steps.push_back(step);
  for (const auto& [id, slot] : written) emit_stores(id, slot);
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
    if (step.kernel == nullptr) step.kind = streams() ? Step::Kind::StreamCopy : Step::Kind::Copy;
    step.in[0] = static_cast<uint16_t>(written);
    if (!is_deferred(output)) {
      step.out = output_slot(output);
      stage_.steps.push_back(step);
      continue;
    }
    // Converted or copied to a buffer now, and stored at the end: an input still needs the output's memory.
    if (step.kernel != nullptr || direct.place == Place::Input || direct.place == Place::Output) {
      step.kind = step.kernel != nullptr ? Step::Kind::Kernel : Step::Kind::Copy;
      step.out = new_buffer(storage_size(type));
      stage_.steps.push_back(step);
      step.in[0] = step.out;
    }
    step.kind = Step::Kind::Copy;
    step.out = output_slot(output);
    deferred_.push_back(step);
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

void StageBuilder::choose_tile() {
  auto bytes = static_cast<int64_t>(stage_.buffer_bytes);  // that one element of a tile touches
  for (const Slot& slot : stage_.slots) {
    if (slot.access == Access::Whole) bytes += slot.size;
  }
  int64_t tile = std::clamp(kTileBytes / std::max<int64_t>(bytes, 1), kMinTile, kMaxTile) / kMinTile * kMinTile;
  if (stage_.by_rows) {
    const int64_t pieces = (stage_.columns + tile - 1) / tile;
    tile = static_cast<int64_t>(round_up(static_cast<size_t>((stage_.columns + pieces - 1) / pieces), kMinTile));
    stage_.tiles_per_row = (stage_.columns + tile - 1) / tile;
    stage_.tiles = stage_.elements / stage_.columns * stage_.tiles_per_row;
  } else {
    tile = std::max<int64_t>(tile / period_, 1) * period_;
    stage_.tiles = (stage_.elements - 1) / tile + 1;
  }
  stage_.tile = tile;
  const size_t padded = round_up(static_cast<size_t>(tile), kCacheLine);
  stage_.buffer_bytes *= padded;
  for (Slot& slot : stage_.slots) {
    if (slot.place == Place::Buffer) slot.offset *= padded;
  }
  const auto used = static_cast<double>(std::min({tile, stage_.elements, stage_.by_rows ? stage_.columns : tile}));
  stage_.tile_cost = (stage_.tile_cost + 0.05 * static_cast<double>(bytes)) * used + 10.0 * stage_.steps.size();
}

// Gives every buffer its place among the tile buffers, for a tile of one element; one that is no longer read makes room
// for the next.
void StageBuilder::place_buffers() {
  const auto links_of = [&](const Step& step) {
    return std::pair(stage_.links.begin() + step.first, stage_.links.begin() + step.first + step.count);
  };
  std::vector<int> last_read(stage_.slots.size(), -1);
  const auto is_buffer = [&](uint16_t slot) { return stage_.slots[slot].place == Place::Buffer; };
  const int end = static_cast<int>(stage_.steps.size());
  for (const Step& step : stage_.prologue) last_read[step.out] = end;
  for (int s = 0; s < end; ++s) {
    const Step& step = stage_.steps[s];
    for (int i = 0; i < step.arity; ++i) last_read[step.in[i]] = std::max(last_read[step.in[i]], s);
    if (step.kind != Step::Kind::Chain) continue;
    for (auto [link, stop] = links_of(step); link != stop; ++link) {
      if (link->link == Link::Keep || link_reads(link->link) > 0) last_read[link->slot] = std::max(last_read[link->slot], s);
      if (link_reads(link->link) > 1) last_read[link->slot2] = std::max(last_read[link->slot2], s);
    }
  }
  std::vector<size_t> free[9];  // by element size
  const auto allocate = [&](uint16_t index) {
    Slot& slot = stage_.slots[index];
    if (!free[slot.size].empty()) {
      slot.offset = free[slot.size].back();
      free[slot.size].pop_back();
      return;
    }
    slot.offset = stage_.buffer_bytes;
    stage_.buffer_bytes += slot.size;
  };
  std::vector<bool> released(stage_.slots.size());
  const auto release = [&](uint16_t slot, int s) {
    if (!is_buffer(slot) || last_read[slot] != s || released[slot]) return;
    released[slot] = true;
    free[stage_.slots[slot].size].push_back(stage_.slots[slot].offset);
  };
  for (const Step& step : stage_.prologue) allocate(step.out);
  for (int s = 0; s < end; ++s) {
    const Step& step = stage_.steps[s];
    if (step.kind == Step::Kind::Chain) {
      // Kept values are written while the chain still reads its operands, so they come before the operands' release.
      for (auto [link, stop] = links_of(step); link != stop; ++link) {
        if (link->link == Link::Keep && is_buffer(link->slot)) allocate(link->slot);
      }
    }
    for (int i = 0; i < step.arity; ++i) release(step.in[i], s);
    const bool in_chain = step.kind == Step::Kind::Chain;
    if (is_buffer(step.out)) allocate(step.out);
    if (in_chain) {
      for (auto [link, stop] = links_of(step); link != stop; ++link) {
        if (link->link == Link::Keep || link_reads(link->link) > 0) release(link->slot, s);
        if (link_reads(link->link) > 1) release(link->slot2, s);
      }
    }
  }
}

// What the executor must know where an output shares memory with an input.
void StageBuilder::record_uses() {
  const int number = static_cast<int>(plan_.stages.size());
  const auto read = [&](uint16_t index, int moment) {
    const Slot& slot = stage_.slots[index];
    if (slot.place != Place::Input) return;
    InputUse& use = plan_.inputs[slot.index];
    if (use.stage != number) {
      use.whole = use.stages == 0;
      ++use.stages;
      use.stage = number;
    }
    use.whole = use.whole && slot.access == Access::Whole;
    use.last_read = moment;
  };
  const auto write = [&](uint16_t index, int moment) {
    const Slot& slot = stage_.slots[index];
    if (slot.place != Place::Output) return;
    OutputUse& use = plan_.outputs[slot.index];
    if (use.stage != number) use.first_write = moment;
    use.stage = number;
  };
  // A kernel reads an element before it writes the same one; so does a chain, but link after link.
  int moment = 0;
  for (const Step& step : stage_.prologue) read(step.in[0], moment);
  for (const Step& step : stage_.steps) {
    for (int i = 0; i < step.arity; ++i) read(step.in[i], moment);
    for (uint32_t l = step.first; l < step.first + step.count; ++l, ++moment) {
      const PlannedLink& link = stage_.links[l];
      if (link.link == Link::Keep) write(link.slot, moment);
      if (link_reads(link.link) > 0) read(link.slot, moment);
      if (link_reads(link.link) > 1) read(link.slot2, moment);
    }
    write(step.out, moment++);
  }
}

}  // namespace onnxfuse
