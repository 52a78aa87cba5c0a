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

void run_row_chain(const Program& program, const Stage& stage, const std::vector<RowOperand>& operands,
                   const void* const* tensors, size_t inputs, const RowReduction& reduction) {
  const Step& step = stage.steps[0];
  ChainLink links[kMaxChainLinks];
  OperandSteps steps[kMaxChainLinks];
  ChainedRows block{};
  block.links = links;
  block.steps = steps;
  block.count = step.count;
  block.n = static_cast<size_t>(reduction.n);
  block.combine = reduction.combine;
  block.map = reduction.map;
  block.streams = step.stores == Stores::Streamed;
  block.fetched = reduction.fetched;
  block.fetched_count = reduction.fetched_count;
  // `find` says where the operands of row_operands are, by their places among these, for so many rows from row `done` on.
  const auto run = [&](int64_t done, int64_t rows, const auto& find) {
    for (uint32_t i = 0; i < step.count; ++i) {
      const Found one = find(2 + 2 * i);
      const Found other = find(3 + 2 * i);
      links[i] = {stage.links[step.first + i].link, one.at, other.at};
      steps[i] = {one.step, other.step};
    }
    const Found in = find(0);
    block.in = reinterpret_cast<const float*>(in.at);
    block.in_step = in.step;
    block.out = reduction.stores ? reinterpret_cast<float*>(find(1).at) : nullptr;
    block.rows = static_cast<size_t>(rows);
    block.results = reduction.results == nullptr ? nullptr : reduction.results + done;
    kernels().chain_rows(block);
  };
  if (!operands.empty()) {
    return run(0, reduction.rows, [&](size_t place) -> Found {
      const RowOperand& one = operands[place];
      const char* const memory = one.tensor < 0 ? one.memory : static_cast<const char*>(tensors[one.tensor]);
      const ptrdiff_t offset = one.begin + reduction.first * one.by_element + reduction.row * one.by_row;
      return {const_cast<char*>(memory) + offset, reduction.parts ? one.by_element * reduction.n : one.step};
    });
  }
  const Tensors both{tensors, const_cast<void* const*>(tensors + inputs), nullptr};
  for (int64_t done = 0; done < reduction.rows;) {
    const RowFinder some(program, stage, both, reduction.first + done * reduction.n, reduction.rows - done, reduction.n);
    run(done, some.rows(), [&](size_t place) -> Found {
      if (place == 0) return some.find(step.in[0]);
      if (place == 1) return some.find(step.out);
      const PlannedLink& link = stage.links[step.first + place / 2 - 1];
      const size_t reads = link.link == Link::Keep ? 1 : static_cast<size_t>(link_reads(link.link));
      return place % 2 < reads ? some.find(place % 2 == 0 ? link.slot : link.slot2) : Found{nullptr, 0};
    });
    done += some.rows();
  }
}

}  // namespace onnxfuse
