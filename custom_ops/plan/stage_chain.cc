// The part of StageBuilder that finds chains: instructions in a row that hand one value on in registers.
#include <algorithm>
#include <cstring>

#include "plan/cost.h"
#include "plan/stage_builder.h"
#include "simd/constant_division.h"

namespace onnxfuse {
namespace {

// An instruction is at most two links: itself, and one that keeps its value.
constexpr size_t kMaxChainInstructions = kMaxChainLinks / 2;
// Of so many instructions a chain waits for the memory of its results longer than it computes, if the level 2 cache has it.
constexpr size_t kFewInstructions = 5;

// The link of the same name, of an operator of one operand that chains have.
constexpr Link unary_link(Op op) {
  switch (op) {
#define ONNXFUSE_UNARY_LINK(functor) \
  case Op::functor: return Link::functor;
#include "program/opcodes.inc"
#undef ONNXFUSE_UNARY_LINK
    default: return Link::Keep;
  }
}

// The links of an operator of two operands, the other one a scalar or not, and the same for the value as the second
// operand; Keep where there is none.
struct BinaryLinks {
  Link scalar, tensor, reversed_scalar, reversed_tensor;
};

constexpr BinaryLinks binary_links(Op op) {
  switch (op) {
    case Op::Add: return {Link::AddS, Link::AddV, Link::AddS, Link::AddV};
    case Op::Sub: return {Link::SubS, Link::SubV, Link::RSubS, Link::RSubV};
    case Op::Mul: return {Link::MulS, Link::MulV, Link::MulS, Link::MulV};
    case Op::Div: return {Link::DivS, Link::DivV, Link::RDivS, Link::RDivV};
    case Op::Min: return {Link::MinS, Link::MinV, Link::RMinS, Link::RMinV};
    case Op::Max: return {Link::MaxS, Link::MaxV, Link::RMaxS, Link::RMaxV};
    case Op::LeakyRelu: return {Link::LeakyReluS, Link::LeakyReluV, Link::Keep, Link::Keep};
    default: return {Link::Keep, Link::Keep, Link::Keep, Link::Keep};
  }
}

constexpr bool all_have_links() {
  for (int i = 0; i < kOpCount; ++i) {
    const Op op = static_cast<Op>(i);
    const bool unary = info(op).arity == 1 && unary_link(op) != Link::Keep;
    const bool binary = info(op).arity == 2 && binary_links(op).scalar != Link::Keep;
    if (info(op).chained != 0 && !unary && !binary && op != Op::HardSigmoid) return false;
    const bool reversed = binary && binary_links(op).reversed_scalar != Link::Keep;
    if (binary && is_chained_first_only(op) == reversed) return false;
  }
  return true;
}
static_assert(all_have_links(), "the table says that chains have an operator for which there is no link");

// The link that takes its operand from a register instead of memory; Keep where there is none.
Link from_register(Link link) {
  switch (link) {
    case Link::AddV: return Link::AddR;
    case Link::SubV: return Link::SubR;
    case Link::RSubV: return Link::RSubR;
    case Link::MulV: return Link::MulR;
    case Link::DivV: return Link::DivR;
    case Link::RDivV: return Link::RDivR;
    default: return Link::Keep;
  }
}

// The link of x times what `link` makes of x; Keep where there is none.
Link gated(Link link) {
  switch (link) {
    case Link::HardSigmoidSS: return Link::HardGateSS;
    case Link::Sigmoid: return Link::Silu;
    default: return Link::Keep;
  }
}

// x HardSigmoid(x), or x Sigmoid(x), becomes one link, where x is the chain's input in slot `input`, or a value that only this reads again.
// `local` are the slots of such values.
void merge_gates(uint16_t input, const std::vector<int>& local, std::vector<PlannedLink>* links) {
  for (size_t i = 0; i + 1 < links->size(); ++i) {
    const Link merged = gated((*links)[i].link);
    const PlannedLink gate = (*links)[i + 1];
    if (merged == Link::Keep || gate.link != Link::MulV) continue;
    const bool kept = i > 0 && (*links)[i - 1].link == Link::Keep && (*links)[i - 1].slot == gate.slot;
    if (!kept && (i > 0 || gate.slot != input)) continue;
    (*links)[i].link = merged;
    links->erase(links->begin() + static_cast<ptrdiff_t>(i) + 1);
    const auto reads = [&](const PlannedLink& link) {
      return (link_reads(link.link) > 0 && link.slot == gate.slot) ||
             (link_reads(link.link) > 1 && link.slot2 == gate.slot);
    };
    if (kept && std::find(local.begin(), local.end(), gate.slot) != local.end() &&
        std::none_of(links->begin(), links->end(), reads)) {
      links->erase(links->begin() + static_cast<ptrdiff_t>(i) - 1);
    }
  }
}

// The link that multiplies as `before` does and adds as `link` does, rounding once; Keep where there is none.
Link contracted(Link before, Link link) {
  if (before != Link::MulS && before != Link::MulV) return Link::Keep;
  if (link == Link::AddS) return before == Link::MulS ? Link::FmaSS : Link::FmaVS;
  if (link == Link::AddV) return before == Link::MulS ? Link::FmaSV : Link::FmaVV;
  return Link::Keep;
}

// Clip, a maximum with a scalar and then a minimum, becomes one link, and so does a scale and then a shift.  If `contracts`
// a product and the sum after it are rounded once, with operands that are no values in registers.
void merge_pairs(bool contracts, std::vector<PlannedLink>* links) {
  for (size_t i = 1; i < links->size(); ++i) {
    PlannedLink& before = (*links)[i - 1];
    const PlannedLink link = (*links)[i];
    Link merged = contracts ? contracted(before.link, link.link) : Link::Keep;
    if (before.link == Link::RMaxS && link.link == Link::RMinS) merged = Link::ClipSS;
    if (!contracts && before.link == Link::MulS && link.link == Link::AddS) merged = Link::MulAddSS;
    if (merged == Link::Keep) continue;
    before = {merged, before.slot, link.slot};
    links->erase(links->begin() + static_cast<ptrdiff_t>(i));
  }
}

}  // namespace

// Values that only this chain reads again stay in a register, as far as one register each is enough.  `local` are the
// slots of such values.
void StageBuilder::keep_in_registers(const std::vector<int>& local, std::vector<PlannedLink>* links) const {
  if (!kernels().second_value) return;
  for (size_t at = 0, next = 0; at < links->size(); at = std::max(at + 1, next)) {
    const PlannedLink kept = (*links)[at];
    if (kept.link != Link::Keep || std::find(local.begin(), local.end(), kept.slot) == local.end()) continue;
    std::vector<size_t> readers;
    bool possible = true;
    for (size_t i = at + 1; i < links->size(); ++i) {
      const PlannedLink& link = (*links)[i];
      const int reads = link_reads(link.link);
      if (reads > 1 && link.slot2 == kept.slot) possible = false;
      if (reads == 0 || link.slot != kept.slot) continue;
      readers.push_back(i);
      possible = possible && from_register(link.link) != Link::Keep;
    }
    if (!possible || readers.empty()) continue;
    (*links)[at].link = Link::Save;
    for (const size_t i : readers) (*links)[i].link = from_register((*links)[i].link);
    next = readers.back();
  }
}

bool StageBuilder::is_chainable(uint16_t id) const {
  const Value& value = program_.values[id];
  if (!is_chained(value.op, value.op_type)) return false;
  if (is_chained_first_only(value.op) && is_scalar(value.operands[0])) return false;
  return value.op != Op::HardSigmoid || (is_scalar(value.operands[1]) && is_scalar(value.operands[2]));
}

// Whether `next` can follow `last` in a chain: it takes the value from the register once, or squares it.
bool StageBuilder::can_extend(uint16_t last, uint16_t next) const {
  const Value& value = program_.values[next];
  if (!is_chainable(next) || compute_type(value.op_type) != compute_type(program_.values[last].type)) return false;
  const int arity = info(value.op).arity;
  const auto times = std::count(value.operands, value.operands + arity, last);
  if (value.op == Op::Mul && times == 2) return true;
  if (times != 1) return false;
  return !is_chained_first_only(value.op) || value.operands[0] == last;
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

// The slot of what was computed from constants.
template <class T> uint16_t StageBuilder::derived(const T& value) {
  uint64_t bits = 0;
  static_assert(sizeof value <= sizeof bits);
  std::memcpy(&bits, &value, sizeof value);
  Slot slot;
  slot.place = Place::Derived;
  slot.index = static_cast<uint32_t>(stage_.derived.size());
  stage_.derived.push_back(bits);
  stage_.slots.push_back(std::move(slot));
  return static_cast<uint16_t>(stage_.slots.size() - 1);
}

// The link that divides by a scalar.  By a constant it gives the same without a division, where it can.
PlannedLink StageBuilder::division_by(uint16_t divisor) {
  const Value& value = program_.values[divisor];
  const PlannedLink division{Link::DivS, operand(divisor), 0};
  if (value.kind != Value::Kind::Const) return division;
  const auto times = [&](const auto& reciprocal) { return PlannedLink{Link::MulS, derived(reciprocal), 0}; };
  if (compute_type(value.type) == DType::f64) {
    double number;
    std::memcpy(&number, &value.bits, sizeof number);
    const auto power = power_reciprocal_of(number);
    return power ? times(*power) : division;
  }
  float number;
  std::memcpy(&number, &value.bits, sizeof number);
  if (const auto power = power_reciprocal_of(number)) return times(*power);
  const auto parts = reciprocal_of(number);
  if (!parts || !kernels().fused_multiply_add) return division;
  return {Link::DivPartsS, division.slot, derived(*parts)};
}

// Whether an operator has a link that takes a source of one element for each row, of blocks of rows that are whole vectors.
bool StageBuilder::has_row_link(Op op, uint16_t id) const {
  if (!by_blocks() || stage_.by_rows || in_stage(id) || (op != Op::Add && op != Op::Sub && op != Op::Mul)) return false;
  const Slot& slot = stage_.slots[source_slot_[id]];
  if (slot.place != Place::Input || slot.access != Access::Gathered || slot.half != 0) return false;
  const DType type = program_.values[id].type;
  const auto lanes = static_cast<int64_t>(kernels().floats * sizeof(float) / compute_size(type));
  if (compute_type(type) != type || stage_.columns % lanes != 0 || plan_.key.multiple % stage_.columns != 0) return false;
  // Its dimensions, merged, are those of the rows, in their order, and the columns.
  return slot.dims.size() == 2 && slot.strides[0] == 1 && slot.strides[1] == 0 && slot.dims[1] == stage_.columns;
}

uint16_t StageBuilder::row_scalars(uint16_t id) {
  if (scalars_slot_[id] < 0) {
    Slot slot = stage_.slots[source_slot_[id]];
    slot.access = Access::Scalars;
    period_ = std::max(period_, stage_.columns);
    scalars_slot_[id] = static_cast<int>(stage_.slots.size());
    stage_.slots.push_back(std::move(slot));
  }
  return static_cast<uint16_t>(scalars_slot_[id]);
}

// The link that applies instruction `id` to its operand number `accumulated`.
PlannedLink StageBuilder::link_for(uint16_t id, int accumulated) {
  const Value& value = program_.values[id];
  if (value.op == Op::HardSigmoid) {
    return {Link::HardSigmoidSS, operand(value.operands[1]), operand(value.operands[2])};
  }
  if (info(value.op).arity == 1) return {unary_link(value.op), 0, 0};
  const uint16_t other = value.operands[1 - accumulated];
  const bool scalar = is_scalar(other);
  if (!scalar && has_row_link(value.op, other)) {
    const auto lanes = static_cast<int64_t>(kernels().floats * sizeof(float) / compute_size(value.op_type));
    const int64_t vectors = stage_.columns / lanes;
    const uint64_t in_row = static_cast<uint64_t>(((int64_t{1} << 32) + vectors - 1) / vectors);
    const Link link = value.op == Op::Add   ? Link::AddRow
                      : value.op == Op::Mul ? Link::MulRow
                      : accumulated == 0    ? Link::SubRow
                                            : Link::RSubRow;
    return {link, row_scalars(other), derived(in_row)};
  }
  if (value.op == Op::Div && accumulated == 0 && scalar) return division_by(other);
  const BinaryLinks links = binary_links(value.op);
  const Link plain = scalar ? links.scalar : links.tensor;
  const Link reversed = scalar ? links.reversed_scalar : links.reversed_tensor;
  return {accumulated == 0 ? plain : reversed, operand(other), 0};
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
      const bool second = is_scalar(value.operands[0]) ||
                          (has_row_link(value.op, value.operands[0]) && !has_row_link(value.op, value.operands[1]));
      const int accumulated = second && arity == 2 ? 1 : 0;
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
    stage_.tile_cost += chained_cost_of(value.op, compute_type(value.op_type));

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
      const bool apart = plan_.key.aliased == 0 && stage_.slots[to.slot].place == Place::Output;
      // Where single rows are run, others have brought the memory of results into the caches.
      const bool cold = by_blocks() ? !is_buffer(stage_.slots[to.slot].index) : !plan_.key.anywhere;
      const bool fetches = cold && (stage_.turns || length <= kFewInstructions);
      const Stores stores = fetches ? Stores::Fetched : Stores::Apart;
      step.stores = to.stream ? Stores::Streamed : apart ? stores : Stores::Plain;
    } else {
      links.push_back({Link::Keep, static_cast<uint16_t>(to.slot), 0});
    }
  }
  std::vector<int> local;
  for (const auto& [id, slot] : written) {
    const bool read_later = uses_[id] > 0 || kept_[id] || !outputs_of_[id].empty();
    if (!read_later && stage_.slots[slot].place == Place::Buffer) local.push_back(slot);
  }
  merge_gates(step.in[0], local, &links);
  keep_in_registers(local, &links);
  merge_pairs(program_.contracts, &links);
  step.chain = kernels().chains[static_cast<int>(compute_type(program_.values[order_[at]].op_type))];
  step.first = static_cast<uint32_t>(stage_.links.size());
  step.count = static_cast<uint32_t>(links.size());
  stage_.links.insert(stage_.links.end(), links.begin(), links.end());
  stage_.steps.push_back(step);
  for (const auto& [id, slot] : written) emit_stores(id, slot);
}

}  // namespace onnxfuse
