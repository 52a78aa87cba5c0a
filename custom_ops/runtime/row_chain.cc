#include "runtime/row_chain.h"

#include <algorithm>

namespace onnxfuse {
namespace {

struct Found {
  char* at;
  ptrdiff_t step;  // bytes, to the next row
};

// Some rows between whose operands the steps are the same.
class RowFinder {
 public:
  RowFinder(const Program& program, const Stage& stage, const Tensors& tensors, int64_t first, int64_t rows, int64_t n)
      : program_(program), stage_(stage), tensors_(tensors), first_(first), n_(n), rows_(rows) {
    if (!stage.by_rows) return;
    row_ = first / stage.columns;
    column_ = first % stage.columns;
    if (stage.columns > n || rows == 1) {
      rows_ = std::min(rows, (stage.columns - column_) / n);
      return;
    }
    // Rows along the dimension outside the columns.
    along_ = true;
    const int64_t size = stage.dims[stage.dims.size() - 2];
    rows_ = std::min(rows, size - row_ % size);
  }

  int64_t rows() const { return rows_; }

  Found find(uint16_t index) const {
    const Slot& slot = stage_.slots[index];
    const auto size = static_cast<ptrdiff_t>(slot.size);
    char* const base = base_of(slot);
    if (slot.access == Access::Whole) return {base + first_ * size, n_ * size};
    if (slot.access != Access::Row) return {base, 0};
    const ptrdiff_t by_column = slot.by_column ? 1 : 0;
    const ptrdiff_t step = along_ ? slot.strides[stage_.dims.size() - 2] : by_column * n_;
    return {base + (row_offset(stage_, slot, row_) + by_column * column_) * size, step * size};
  }

 private:
  char* base_of(const Slot& slot) const {
    if (slot.place == Place::Output) return static_cast<char*>(tensors_.outputs[slot.index]);
    if (slot.place == Place::Input) {
      return static_cast<char*>(const_cast<void*>(tensors_.inputs[slot.index])) + slot.offset;
    }
    return reinterpret_cast<char*>(const_cast<uint64_t*>(constant_of(program_, stage_, slot)));
  }

  const Program& program_;
  const Stage& stage_;
  const Tensors& tensors_;
  const int64_t first_;
  const int64_t n_;
  int64_t rows_;
  int64_t row_ = 0;     // of the stage
  int64_t column_ = 0;  // in it
  bool along_ = false;
};

}  // namespace

bool is_row_chain(const Program& program, const Stage& stage, int64_t n) {
  if (stage.steps.size() != 1 || !stage.prologue.empty()) return false;
  const Step& step = stage.steps[0];
  if (step.kind != Step::Kind::Chain || step.chain != kernels().chains[static_cast<int>(DType::f32)]) return false;
  if (stage.by_rows && (stage.columns % n != 0 || (stage.columns == n && stage.dims.size() < 2))) return false;
  const auto fits = [&](uint16_t index) {
    const Slot& slot = stage.slots[index];
    if (constant_of(program, stage, slot) != nullptr) return true;
    const bool placed = slot.place == Place::Input || slot.place == Place::Output;
    return placed && (slot.access == Access::Whole || slot.access == Access::Fixed || slot.access == Access::Row);
  };
  const Slot& in = stage.slots[step.in[0]];
  const Slot& out = stage.slots[step.out];
  // A chain reads vectors: what is one element for a row, or for all, only links can repeat.
  const bool reads = in.place == Place::Input && (in.access == Access::Whole || (in.access == Access::Row && in.by_column));
  if (!reads || out.place != Place::Output || out.access != Access::Whole) return false;
  return std::all_of(stage.links.begin(), stage.links.end(), [&](const PlannedLink& link) {
    const int operands = link.link == Link::Keep ? 1 : link_reads(link.link);
    return (operands < 1 || fits(link.slot)) && (operands < 2 || fits(link.slot2));
  });
}

std::vector<RowOperand> row_operands(const Program& program, const Stage& stage, size_t inputs, int64_t n) {
  std::vector<RowOperand> found;
  bool fits = !stage.by_rows || stage.columns == n;
  const auto add = [&](uint16_t index) {
    const Slot& slot = stage.slots[index];
    const auto size = static_cast<ptrdiff_t>(slot.size);
    RowOperand one;
    if (const uint64_t* constant = constant_of(program, stage, slot)) {
      one.memory = reinterpret_cast<const char*>(constant);
    } else {
      one.tensor = static_cast<int>(slot.place == Place::Output ? inputs + slot.index : slot.index);
      one.begin = slot.place == Place::Output ? 0 : static_cast<ptrdiff_t>(slot.offset);
      if (slot.access == Access::Whole) {
        one.by_element = size;
        one.step = n * size;
      } else if (slot.access == Access::Row) {
        for (size_t d = stage.dims.size() - 2; d > 0; --d) fits &= slot.strides[d - 1] == slot.strides[d] * stage.dims[d];
        one.step = slot.strides[stage.dims.size() - 2] * size;
        one.by_element = slot.by_column ? size : 0;
        one.by_row = one.step - n * one.by_element;
      }
    }
    found.push_back(one);
  };
  const Step& step = stage.steps[0];
  add(step.in[0]);
  add(step.out);
  for (uint32_t i = 0; i < step.count && fits; ++i) {
    const PlannedLink& link = stage.links[step.first + i];
    const int operands = link.link == Link::Keep ? 1 : link_reads(link.link);
    if (operands > 0) add(link.slot);
    if (operands > 1) add(link.slot2);
    for (int missing = operands; missing < 2; ++missing) found.push_back({});
  }
  if (!fits) found.clear();
  return found;
}

bool value_operands(const Program& program, const Stage& stage, size_t inputs, int buffer,
                    std::vector<std::vector<RowOperand>>* steps) {
  if (!stage.prologue.empty() || stage.by_rows) return false;
  bool fits = true;
  const auto find = [&](uint16_t index) -> RowOperand {
    const Slot& slot = stage.slots[index];
    RowOperand one;
    if (const uint64_t* constant = constant_of(program, stage, slot)) {
      one.memory = reinterpret_cast<const char*>(constant);
      return one;
    }
    one.begin = slot.place == Place::Output ? 0 : static_cast<ptrdiff_t>(slot.offset);
    switch (slot.place) {
      case Place::Input: one.tensor = static_cast<int>(slot.index); break;
      case Place::Output: one.tensor = static_cast<int>(inputs + slot.index); break;
      case Place::Buffer: one.tensor = buffer; break;
      default: fits = false;
    }
    fits &= slot.access == Access::Fixed || slot.access == Access::Whole;
    if (slot.access == Access::Whole) one.by_element = one.step = static_cast<ptrdiff_t>(slot.size);
    return one;
  };
  // A chain reads, and writes, a vector.
  const auto is_vector = [&](uint16_t index) {
    const Slot& slot = stage.slots[index];
    return slot.access == Access::Whole || slot.place == Place::Buffer;
  };
  for (const Step& step : stage.steps) {
    if (step.kind != Step::Kind::Chain || step.chain != kernels().chains[static_cast<int>(DType::f32)]) return false;
    if (!is_vector(step.in[0]) || !is_vector(step.out)) return false;
    std::vector<RowOperand> found{find(step.in[0]), find(step.out)};
    for (uint32_t i = 0; i < step.count; ++i) {
      const PlannedLink& link = stage.links[step.first + i];
      const int operands = link.link == Link::Keep ? 1 : link_reads(link.link);
      found.push_back(operands > 0 ? find(link.slot) : RowOperand{});
      found.push_back(operands > 1 ? find(link.slot2) : RowOperand{});
    }
    steps->push_back(std::move(found));
  }
  return fits;
}

void place_row_pass(const Stage& stage, const Step& step, const std::vector<RowOperand>& operands, const RowTensors& tensors,
                    RowPass* pass, ChainLink* links, OperandSteps* steps) {
  const auto find = [&](size_t place) -> Found {
    const RowOperand& one = operands[place];
    const char* const memory = one.tensor < 0 ? one.memory : static_cast<const char*>(tensors.at[one.tensor]);
    const ptrdiff_t offset = one.begin + tensors.first * one.by_element + tensors.row * one.by_row;
    return {const_cast<char*>(memory) + offset, tensors.part > 0 ? one.by_element * tensors.part : one.step};
  };
  for (uint32_t i = 0; i < step.count; ++i) {
    const size_t place = 2 + 2 * static_cast<size_t>(i);
    const Found one = find(place);
    const Found other = find(place + 1);
    links[i] = {stage.links[step.first + i].link, one.at, other.at};
    steps[i] = {one.step, other.step, operands[place].restarts, operands[place + 1].restarts};
  }
  const Found in = find(0);
  pass->in = reinterpret_cast<const float*>(in.at);
  pass->in_step = in.step;
  pass->out = reinterpret_cast<float*>(find(1).at);
  pass->links = links;
  pass->steps = steps;
  pass->count = step.count;
  pass->streams = step.stores == Stores::Streamed;
  pass->in_restarts = operands[0].restarts;
  pass->out_restarts = operands[1].restarts;
}

void run_row_chain(const Program& program, const Stage& stage, const std::vector<RowOperand>& operands,
                   const void* const* tensors, size_t inputs, const RowReduction& reduction) {
  const Step& step = stage.steps[0];
  ChainLink links[kMaxChainLinks];
  OperandSteps steps[kMaxChainLinks];
  RowPass pass{};
  const auto run = [&](int64_t done, int64_t rows) {
    pass.combine = reduction.combine;
    pass.map = reduction.map;
    if (!reduction.stores) pass.out = nullptr;
    pass.results = reduction.results == nullptr ? nullptr : reduction.results + done;
    pass.squares = reduction.squares == nullptr ? nullptr : reduction.squares + done;
    const auto count = static_cast<size_t>(rows);
    kernels().chain_rows({&pass, 1, count, count, static_cast<size_t>(reduction.n), reduction.fetched, reduction.fetched_count});
  };
  if (!operands.empty()) {
    const int64_t part = reduction.parts ? reduction.n : 0;
    place_row_pass(stage, step, operands, {tensors, reduction.first, reduction.row, part}, &pass, links, steps);
    return run(0, reduction.rows);
  }
  const Tensors both{tensors, const_cast<void* const*>(tensors + inputs), nullptr};
  for (int64_t done = 0; done < reduction.rows;) {
    const RowFinder some(program, stage, both, reduction.first + done * reduction.n, reduction.rows - done, reduction.n);
    for (uint32_t i = 0; i < step.count; ++i) {
      const PlannedLink& link = stage.links[step.first + i];
      const int reads = link.link == Link::Keep ? 1 : link_reads(link.link);
      const Found one = reads > 0 ? some.find(link.slot) : Found{nullptr, 0};
      const Found other = reads > 1 ? some.find(link.slot2) : Found{nullptr, 0};
      links[i] = {link.link, one.at, other.at};
      steps[i] = {one.step, other.step, false, false};
    }
    const Found in = some.find(step.in[0]);
    pass = {};
    pass.in = reinterpret_cast<const float*>(in.at);
    pass.in_step = in.step;
    pass.out = reinterpret_cast<float*>(some.find(step.out).at);
    pass.links = links;
    pass.steps = steps;
    pass.count = step.count;
    pass.streams = step.stores == Stores::Streamed;
    run(done, some.rows());
    done += some.rows();
  }
}

}  // namespace onnxfuse
