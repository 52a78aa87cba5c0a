// Fuzzing of what the CUDA operator of nodes that reduce reads from a model, and of the launches that it plans.
//
//   fuzz_rows [runs] [seed]
// Every run makes a program, shapes and a recipe, some of them spoilt.  Each launch that comes out of them is decoded as a
// kernel would, and its indices are compared with those of the views before any dimensions were merged, at the ends and in
// between.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "cuda/nest/cuda_nest_launch.h"
#include "cuda/nest/cuda_nest_layout.h"
#include "cuda/nest/cuda_nest_parameters.h"
#include "cuda/nest/cuda_nest_recipe.h"
#include "program/program.h"
#include "program/program_shapes.h"
#include "tests/cuda/contract_decoder.h"
#include "tests/fuzz/fuzz_random.h"

namespace {

using namespace onnxfuse;
using fuzz::below;
using fuzz::expect;
using fuzz::g_random;
using cuda::NestCandidate;
using cuda::NestPlan;
using cuda::NestRecipe;

constexpr const char* kViews[] = {"permute:0.2.1", "slice:-1:1:9:2", "split:-1:2:-1", "merge:-2", "unsqueeze:-2",
                                  "squeeze:-1",    "slice:-2:-3:-1:1", "split:-2:-1:4,merge:-2",
                                  // rows of relative positions, each of which begins one place before the one above
                                  "merge:-2,slice:-1:3:15:1,split:-1:4:3,slice:-1:0:2:1"};

std::string random_letters(const char* of, size_t count) {
  std::string letters;
  while (letters.size() < count) letters += of[below(std::char_traits<char>::length(of))];
  return letters;
}

std::string random_recipe(const cuda::NestOperands& counts) {
  std::string text = "onnxfuse-cuda-rows 1\nsource " + std::string(64, 'a') + "\n";
  const auto line = [&](const std::string& sizes, const std::string& inputs, const std::string& indices,
                        const std::string& outputs, size_t tile = 1) {
    text += "kernel k" + std::to_string(text.size()) + " " + sizes + " access " + inputs + ":" + indices + ":" + outputs +
            (tile > 1 ? " tile " + std::to_string(tile) : "") + "\n";
  };
  for (size_t kernels = below(6); kernels > 0; --kernels) {
    const size_t vector = size_t{1} << below(6);
    const bool columns = counts.tables == 0 && below(2) == 0;
    const size_t threads = columns ? 1 + below(32) : size_t{1} << below(11);
    const size_t block = columns ? 32 * threads : std::max<size_t>(threads, 32);
    const bool in_steps = below(3) == 0 && (columns || threads == block);
    const size_t tile = !columns && !in_steps && counts.tables == 0 && below(2) == 0 ? 2 + below(3) : 1;
    const char* const letters = columns ? "slg" : tile > 1 ? "slbgSLBG" : "slbg";
    line("along " + std::string(columns ? "columns" : "rows") + " threads " + std::to_string(threads) + " items " +
             std::to_string(in_steps ? 0 : below(5)) + " vector " + std::to_string(vector) + " block " +
             std::to_string(block) + " index " + (below(2) == 0 ? "32" : "64") + " steps " +
             std::to_string(in_steps ? 1 + below(4) : 0),
         random_letters(letters, counts.inputs), random_letters(letters, counts.indices),
         random_letters(vector == 1 ? "slg" : "sl", counts.outputs), tile);
  }
  line("along rows threads 32 items 0 vector 1 block 128 index 64 steps 0", std::string(counts.inputs, 'g'),
       std::string(counts.indices, 'g'), std::string(counts.outputs, 'g'));
  return text;
}

std::string random_program(size_t inputs, size_t outputs) {
  static constexpr struct {
    const char* name;
    size_t size;
  } kTypes[] = {{"f32", 4}, {"f16", 2}, {"i32", 4}, {"f64", 8}, {"u8", 1}};
  const auto& [name, size] = kTypes[below(5)];
  const std::string type = name;
  const std::string reduce = size == 1 ? "reduce_min " : "reduce_sum ";
  const bool named = below(4) == 0;
  std::string text = "onnxfuse 3\n";
  const bool reads_bytes = size > 1 && below(4) == 0;  // as of weights of 8 bits, or of 4
  std::vector<size_t> bytes;
  for (size_t i = 0; i < inputs; ++i) {
    const size_t kind = i == 0 ? below(5) : below(12);
    const bool is_bytes = reads_bytes && (i == 1 || below(3) == 0);
    if (is_bytes) bytes.push_back(i);
    const std::string own = !is_bytes ? type : below(3) == 0 ? "i8" : "u8";
    text += "input " + own;
    if (own == "u8" && below(2) == 0) {  // two elements in a byte
      text += std::string(" view nibbles:-1") + (kind == 0 ? std::string(",") + kViews[below(std::size(kViews))] : "") + "\n";
      continue;
    }
    text += kind == 5   ? " axis -" + std::to_string(1 + below(3)) + "\n"
            : kind == 0 ? std::string(" view ") + kViews[below(std::size(kViews))] + "\n"
                        : std::string(" broadcast\n");
  }
  if (named) {
    text += std::string("input ") + (below(2) == 0 ? "i32" : "i64") + " broadcast\n";
    text += "input " + type + " row " + std::to_string(inputs) + (below(3) == 0 ? " view permute:1.0\n" : "\n");
    inputs += 2;
  }
  text += "const " + type + " " + std::string(2 * size, '0') + "\n";
  static constexpr const char* kAxes[] = {"-1", "-2", "-2,-1", "-3", "-3,-1", "-3,-2,-1"};
  const std::string axes = kAxes[below(below(2) == 0 ? 2 : std::size(kAxes))];
  size_t values = inputs + 1;
  std::vector<size_t> as_read(values);  // by value: itself, or what it is in the type that is computed in
  std::iota(as_read.begin(), as_read.end(), 0);
  if (named) as_read[inputs - 2] = inputs - 1;  // not the numbers
  for (const size_t i : bytes) {
    text += "cast " + type + " " + std::to_string(i) + "\n";
    as_read[i] = values++;
    as_read.push_back(as_read[i]);
  }
  std::vector<size_t> whole{as_read[0]};  // values of the first input's shape, but for a few
  const auto any = [&] { return as_read[below(values)]; };
  const auto one_of_them = [&] { return std::to_string(below(12) == 0 ? any() : whole[below(whole.size())]); };
  for (size_t steps = 6; steps > 0; --steps, as_read.push_back(values++)) {
    switch (below(4)) {
      case 0: text += reduce + type + " " + one_of_them() + " " + axes + "\n"; break;
      case 1: text += "index " + type + " " + one_of_them() + " -" + std::to_string(1 + below(2)) + "\n"; break;
      default:
        text += "add " + type + " " + one_of_them() + " " + std::to_string(any()) + "\n";
        whole.push_back(values);
    }
  }
  text += "reduce_max " + type + " " + std::to_string(as_read[0]) + " " + axes + "\n";
  ++values;
  for (size_t o = 0; o < outputs; ++o) {
    text += "output " + std::to_string(below(values)) + (below(6) == 0 ? " view merge:-2\n" : "\n");
  }
  return text;
}

// Makes of shapes that broadcast those of numbers, one for all that is reduced together, and of the rows that they name.
void name_rows(const Program& program, Shape* numbers, Shape* rows) {
  for (const int axis : program.axes) {
    if (numbers->rank >= -axis && below(12) != 0) numbers->dims[static_cast<size_t>(numbers->rank + axis)] = 1;
  }
  std::copy_backward(rows->dims.begin(), rows->dims.begin() + rows->rank, rows->dims.begin() + rows->rank + 1);
  ++rows->rank;
  static constexpr int64_t kCounts[] = {0, 1, 7, 64, 250'000, INT32_MAX};
  rows->dims[0] = kCounts[below(6)];
}

// Shapes that mostly broadcast with each other; sometimes of more elements than fit 32 bits, or 64.
std::vector<Shape> random_shapes(const Program& program) {
  static constexpr int64_t kSizes[] = {1, 2, 3, 4, 8, 16, 20, 48, 0};
  static constexpr int64_t kLarge[] = {1 << 12, 1 << 16, INT32_MAX, int64_t{3} << 30, int64_t{1} << 40};
  Shape space;
  space.rank = static_cast<int>(below(10) == 0 ? below(17) : 3 + below(2));
  const bool large = below(4) == 0;
  for (int d = 0; d < space.rank; ++d) {
    int64_t& size = space.dims[static_cast<size_t>(d)];
    size = large && below(2) == 0 ? kLarge[below(5)] : kSizes[below(below(6) == 0 ? 9 : 8)];
  }
  std::vector<Shape> shapes;
  for (size_t i = 0; i < program.input_count; ++i) {
    Shape shape;
    if (program.values[i].along_axis && below(8) != 0) {
      shape.rank = 1;
      shape.dims[0] = space.from_back(program.values[i].axis < 0 ? -1 - program.values[i].axis : 0);
    } else {
      shape.rank = i > 0 && below(3) == 0 ? static_cast<int>(below(static_cast<size_t>(space.rank) + 1)) : space.rank;
      for (int d = 0; d < shape.rank; ++d) {
        const int64_t size = space.dims[static_cast<size_t>(d + space.rank - shape.rank)];
        shape.dims[static_cast<size_t>(d)] = i > 0 && below(4) == 0 ? 1 : below(60) == 0 ? size + 1 : size;
      }
    }
    const Value& value = program.values[i];
    if (has_nibbles(value.view) && shape.rank > 0) shape.dims[static_cast<size_t>(shape.rank - 1)] /= 2;
    if (is_named(value) && shape.rank < 16) name_rows(program, &shapes[static_cast<size_t>(value.row)], &shape);
    shapes.push_back(shape);
  }
  return shapes;
}

// A launch's parameters as a kernel reads them.
struct Decoded {
  uint64_t rows = 0, length = 0, row_rank = 0, rank = 0;
  std::vector<contract::Divider> dims;
  struct Steps {
    uint64_t offset = 0, step[16] = {};
  };
  std::vector<Steps> operands;
  struct Table {
    uint64_t rows = 0, step = 0;
  };
  std::vector<Table> tables;
  bool complete = false;

  Decoded(const std::vector<unsigned char>& block, const cuda::NestOperands& counts, bool wide) {
    contract::Reader reader{block.data()};
    const size_t word = wide ? 8 : 4;
    for (size_t t = 0; t < counts.inputs + counts.outputs + 1; ++t) expect(reader.take(8) == 0, "a pointer is filled in");
    rows = reader.take(word);
    length = reader.take(word);
    reader.take(word);
    reader.take(word);
    row_rank = reader.take(4);
    rank = reader.take(4);
    for (int d = 0; d < 16; ++d) dims.emplace_back(&reader, wide);
    operands.resize(counts.inputs + counts.indices + counts.outputs);
    for (Steps& steps : operands) {
      steps.offset = reader.take(word);
      for (uint64_t& step : steps.step) step = reader.take(word);
    }
    tables.resize(counts.tables);
    for (Table& table : tables) {
      table.rows = reader.take(word);
      table.step = reader.take(word);
    }
    complete = reader.next == block.data() + block.size() && row_rank <= rank && rank <= 16;
  }

  uint64_t place(size_t k, uint64_t row, uint64_t r) const {
    uint64_t at = operands[k].offset;
    for (uint64_t d = 0; d < rank; ++d) {
      uint64_t& rest = d < row_rank ? r : row;
      at += dims[d].modulo(rest) * operands[k].step[d];
      rest = dims[d].divide(rest);
    }
    return at;
  }
};

struct Expected {
  Shape space;
  std::vector<bool> is_reduced;
  std::vector<View> views;  // inputs, indices, outputs
  std::vector<std::pair<size_t, Decoded::Table>> tables;  // by input

  // The element of a view that belongs to element r of a row.
  uint64_t place(const View& view, uint64_t row, uint64_t r) const {
    auto at = static_cast<uint64_t>(view.offset);
    for (int d = 0; d < space.rank; ++d) {
      const auto size = static_cast<uint64_t>(space.from_back(d));
      uint64_t& rest = is_reduced[static_cast<size_t>(space.rank - 1 - d)] ? r : row;
      if (view.shape.from_back(d) != 1) {
        at += rest % size * static_cast<uint64_t>(view.strides[static_cast<size_t>(view.shape.rank - 1 - d)]);
      }
      rest /= size;
    }
    return at;
  }
};

Expected expected_of(const Program& program, const std::vector<Shape>& shapes) {
  Expected found;
  std::vector<Shape> values;
  std::string error;
  expect(resolve_shapes(program, shapes, &values, &error), "a plan for shapes that do not fit");
  for (const Shape& shape : values) {
    expect(broadcast(Shape(found.space), shape, &found.space), "a plan for values without a common shape");
  }
  for (size_t i = 0; i < program.values.size(); ++i) {
    const Value& value = program.values[i];
    View view = whole_view(values[i]);
    if (value.kind == Value::Kind::Input) {
      expect(value.along_axis || input_view(value, shapes[i], &view, &error), "a plan for a view that does not fit");
      if (is_named(value)) {
        uint64_t step = shapes[i].dims[0] == 0 ? 0 : 1;
        for (int d = 1; d < shapes[i].rank; ++d) step *= static_cast<uint64_t>(shapes[i].dims[static_cast<size_t>(d)]);
        found.tables.push_back({i, {static_cast<uint64_t>(shapes[i].dims[0]), step}});
      }
    } else if (value.kind == Value::Kind::Index) {
      view.strides = {};
      view.strides[static_cast<size_t>(view.shape.rank + value.axis)] = 1;
    } else {
      continue;
    }
    found.views.push_back(view);
  }
  for (const uint16_t output : program.outputs) found.views.push_back(whole_view(values[output]));
  found.is_reduced.assign(static_cast<size_t>(found.space.rank), false);
  for (const int axis : program.axes) found.is_reduced[static_cast<size_t>(found.space.rank + axis)] = true;
  return found;
}

void check_candidate(const Program& program, const cuda::NestKernel& kernel, const NestPlan& plan,
                     const NestCandidate& candidate, const Expected& wanted) {
  const cuda::NestOperands counts = cuda::nest_operands(program);
  const Decoded decoded(candidate.parameters, counts, kernel.index == 64);
  const auto rows = static_cast<uint64_t>(plan.rows), length = static_cast<uint64_t>(plan.length);
  expect(decoded.complete && decoded.rows == rows && decoded.length == length, "the parameters are not as they should be");
  expect(candidate.parameters.size() == cuda::nest_parameters(kernel, counts).bytes, "parameters of another size");
  expect(candidate.tiles >= 1 && candidate.tiles <= INT32_MAX, "more blocks than a launch may have");
  expect(plan.rows % kernel.tile == 0, "a tile without a row");
  expect((candidate.tiles - 1) * kernel.rows_of_block() < plan.rows / kernel.tile, "a block without a row");
  expect(candidate.tiles * kernel.rows_of_block() >= plan.rows / kernel.tile, "a row without a block");
  if (kernel.items != 0) expect(plan.length <= kernel.capacity(), "a row that does not fit");
  for (const int64_t multiprocessors : {1, 8, 132}) {
    const cuda::Splits splits = cuda::nest_splits(kernel, candidate.tiles, plan.length, multiprocessors);
    expect(splits.splits >= 1 && splits.splits <= 128, "too many parts");
    if (splits.splits == 1) continue;
    expect((splits.splits - 1) * splits.chunk < plan.length && splits.splits * splits.chunk >= plan.length, "parts that are no row");
    expect(splits.chunk % kernel.group() == 0, "a part that cuts a group");
  }
  expect(decoded.tables.size() == wanted.tables.size(), "not every table");
  for (size_t t = 0; t < wanted.tables.size(); ++t) {
    const auto& [own, table] = wanted.tables[t];
    expect(decoded.tables[t].rows == table.rows && decoded.tables[t].step == table.step, "a table of other rows");
    const bool one_piece = candidate.misaligned[own] == 0 || table.step % kernel.vector == 0;
    expect(one_piece, "rows that are not aligned");
    expect(kernel.tile == 1 && !kernel.by_columns, "rows that several threads have in common");
  }
  if (length == 0) return;
  for (int probe = 0; probe < 24; ++probe) {
    uint64_t row = probe < 4 ? 0 : probe < 8 ? rows - 1 : g_random() % rows;
    uint64_t r = probe % 4 == 0 ? 0 : probe % 4 == 1 ? length - 1 : g_random() % length;
    (kernel.by_columns ? row : r) -= (kernel.by_columns ? row : r) % kernel.vector;
    size_t tensor = 0;
    for (size_t k = 0; k < wanted.views.size(); ++k) {
      const bool is_index = k >= counts.inputs && k < counts.inputs + counts.indices;
      const size_t own = is_index ? 0 : tensor++;
      const uint64_t begin = decoded.place(k, row, r);
      expect(begin == wanted.place(wanted.views[k], row, r), "another element than the view says");
      const bool is_shared = kernel.access[k] < 'a';
      const char letter = is_shared ? static_cast<char>(kernel.access[k] - 'A' + 'a') : kernel.access[k];
      if (is_shared) expect(begin == decoded.place(k, row % (rows / kernel.tile), r), "not the same for all tiles");
      if (letter == 's') expect(begin == decoded.place(k, row, 0), "not one element a row");
      if (letter == 'l' && !kernel.by_columns) expect(begin == decoded.place(k, row, 0) + r, "not one step for each element");
      if (letter == 'l' && kernel.by_columns) {
        expect(begin == decoded.place(k, row, 0) + r * decoded.operands[k].step[0], "not the same step for each element");
      }
      if (is_index || kernel.vector == 1 || (letter == 's' && !kernel.by_columns)) continue;
      const auto next = [&](uint64_t v) {
        return kernel.by_columns ? decoded.place(k, row + v, r) : decoded.place(k, row, r + v);
      };
      const bool spreads = next(1) != begin;
      if (letter == 'b') expect(!spreads, "not one element of what is innermost");
      for (uint64_t v = 1; v < kernel.vector; ++v) {
        expect(next(v) == (spreads ? begin + v : begin), "a vector is not of one piece");
      }
      if (!spreads) continue;
      const bool is_byte = kernel.vector == 2 && k < counts.inputs && has_nibbles(program.values[k].view);
      if (!is_byte) expect(candidate.misaligned[own] != 0, "the alignment of a vector is not asked for");
    }
    expect(tensor == candidate.misaligned.size(), "not one alignment for each tensor");
  }
}

void check_plan(const Program& program, const NestRecipe& recipe, const std::vector<Shape>& shapes) {
  std::string error;
  const auto plan = cuda::make_nest_plan(program, recipe, {shapes}, &error);
  if (plan == nullptr) {
    expect(!error.empty(), "refused without a reason");
    return;
  }
  if (plan->rows == 0) return;
  expect(!plan->candidates.empty(), "no kernel takes everything");
  for (const uintptr_t bits : plan->candidates.back().misaligned) expect(bits == 0, "the last kernel asks for alignment");
  const Expected wanted = expected_of(program, shapes);
  for (const NestCandidate& candidate : plan->candidates) {
    check_candidate(program, recipe.kernels[candidate.kernel], *plan, candidate, wanted);
  }
}

void check_recipe() {
  Program program;
  std::string error;
  const size_t inputs = 1 + below(4);
  std::string source = random_program(inputs, 1 + below(3));
  if (below(16) == 0) {
    source += "append " + std::to_string(inputs) + " -1\n";
    expect(!parse_program(source, &program, &error, Reads::Reductions), "what is reduced is written in parts");
    return;
  }
  if (below(8) == 0) fuzz::spoil(&source, "0123456789 \n:-,.reduce_sumindexviewfplitmergow");
  if (!parse_program(source, &program, &error, Reads::Reductions)) {
    expect(!error.empty(), "a program is refused without a reason");
    return;
  }
  const cuda::NestOperands counts = cuda::nest_operands(program);
  std::string text = random_recipe(counts);
  const bool spoilt = below(3) == 0;
  if (spoilt) fuzz::spoil(&text, "0123456789 \n:slbgSLBGrowscolumnstile");
  NestRecipe recipe;
  if (!cuda::parse_nest_recipe(text, counts, &recipe, &error)) {
    expect(spoilt && !error.empty(), "a good recipe is refused");
    return;
  }
  check_plan(program, recipe, random_shapes(program));
}

}  // namespace

int main(int argc, char** argv) { return fuzz::run(argc, argv, check_recipe); }
