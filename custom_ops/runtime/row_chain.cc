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

void run_row_chain(const Program& program, const Stage& stage, const Tensors& tensors, const RowReduction& reduction) {
  const Step& step = stage.steps[0];
  ChainLink links[kMaxChainLinks];
  OperandSteps steps[kMaxChainLinks];
  for (int64_t done = 0; done < reduction.rows;) {
    const RowFinder some(program, stage, tensors, reduction.first + done * reduction.n, reduction.rows - done, reduction.n);
    for (uint32_t i = 0; i < step.count; ++i) {
      const PlannedLink& link = stage.links[step.first + i];
      const int operands = link.link == Link::Keep ? 1 : link_reads(link.link);
      const Found one = operands > 0 ? some.find(link.slot) : Found{nullptr, 0};
      const Found other = operands > 1 ? some.find(link.slot2) : Found{nullptr, 0};
      links[i] = {link.link, one.at, other.at};
      steps[i] = {one.step, other.step};
    }
    const Found in = some.find(step.in[0]);
    float* const out = reduction.stores ? reinterpret_cast<float*>(some.find(step.out).at) : nullptr;
    kernels().chain_rows({reinterpret_cast<const float*>(in.at), in.step, out, links, steps, step.count,
                          static_cast<size_t>(some.rows()), static_cast<size_t>(reduction.n), reduction.combine,
                          reduction.map, reduction.results == nullptr ? nullptr : reduction.results + done});
    done += some.rows();
  }
}

}  // namespace onnxfuse
