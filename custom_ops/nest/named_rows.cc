#include "nest/named_rows.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <string>

#include "platform/error.h"
#include "program/program_shapes.h"

namespace onnxfuse {
namespace {

int64_t number_at(DType type, const void* numbers, int64_t place) {
  if (type == DType::i64) return static_cast<const int64_t*>(numbers)[place];
  return static_cast<const int32_t*>(numbers)[place];
}

// A view in more dimensions: its strides along those of `shape`, to which it broadcasts.
std::array<int64_t, kMaxRank> strides_in(const View& view, const Shape& shape) {
  std::array<int64_t, kMaxRank> strides{};
  const int skip = shape.rank - view.shape.rank;
  for (int d = 0; d < view.shape.rank; ++d) {
    if (view.shape.dims[d] != 1) strides[skip + d] = view.strides[d];
  }
  return strides;
}

struct Table {
  const char* data;
  int64_t count;      // rows
  int64_t row_bytes;  // from one to the next
  int64_t element;    // bytes
  View row;
};

// Copies elements in the order of `shape`, the last dimension at once.
void gather_rows(const Table& table, const View& numbers, DType number_type, const void* named, const Shape& shape,
                 size_t input, char* out) {
  int64_t count = 0;
  element_count(shape, &count);
  if (count == 0) return;
  const int64_t run = shape.from_back(0);
  const auto of_row = strides_in(table.row, shape);
  const auto of_numbers = strides_in(numbers, shape);
  const int64_t step = shape.rank == 0 ? 0 : of_row[shape.rank - 1];
  const int64_t number_step = shape.rank == 0 ? 0 : of_numbers[shape.rank - 1];
  std::array<int64_t, kMaxRank> index{};
  for (int64_t done = 0; done < count; done += run) {
    int64_t at = table.row.offset;
    int64_t number_at_place = numbers.offset;
    for (int d = 0; d + 1 < shape.rank; ++d) {
      at += index[d] * of_row[d];
      number_at_place += index[d] * of_numbers[d];
    }
    for (int64_t i = 0; i < run; ++i, out += table.element) {
      const int64_t number = number_at(number_type, named, number_at_place + i * number_step);
      const int64_t row = number < 0 ? number + table.count : number;
      if (row < 0 || row >= table.count) {
        throw Error("input " + std::to_string(input) + " has " + std::to_string(table.count) +
                    " rows, and row " + std::to_string(number) + " is named");
      }
      const char* const from = table.data + row * table.row_bytes + at * table.element;
      if (number_step == 0 && step == 1) {
        std::memcpy(out, from, static_cast<size_t>(run * table.element));
        out += run * table.element;
        break;
      }
      std::memcpy(out, from + i * step * table.element, static_cast<size_t>(table.element));
    }
    for (int d = shape.rank - 2; d >= 0 && ++index[d] == shape.dims[d]; --d) index[d] = 0;
  }
}

}  // namespace

Program without_named_rows(const Program& program) {
  Program whole = program;
  for (size_t i = 0; i < whole.input_count; ++i) {
    if (!is_named(whole.values[i])) continue;
    whole.values[i].row = -1;
    whole.values[i].view.clear();
  }
  return whole;
}

NamedRows::NamedRows(const Host& host, const Program& program, const PlanKey& key, const void** inputs) : key_(key) {
  std::vector<Shape> shapes;
  std::string error;
  if (!resolve_shapes(program, key.shapes, &shapes, &error)) throw Error(error);
  std::vector<const void*> tables(inputs, inputs + program.input_count);
  for (size_t i = 0; i < program.input_count; ++i) {
    const Value& value = program.values[i];
    if (!is_named(value)) continue;
    const auto own = static_cast<size_t>(value.row);
    View numbers;
    Table table{};
    if (!input_view(program.values[own], key.shapes[own], &numbers, &error)) throw Error(error);
    if (!input_view(value, key.shapes[i], &table.row, &error)) throw Error(error);
    table.data = static_cast<const char*>(tables[i]);
    table.count = key.shapes[i].dims[0];
    table.element = static_cast<int64_t>(storage_size(value.type));
    int64_t count = 0;
    element_count(key.shapes[i], &count);
    table.row_bytes = table.count == 0 ? 0 : count / table.count * table.element;
    element_count(shapes[i], &count);
    rows_.emplace_back(host, static_cast<size_t>(count * table.element));
    auto* const memory = static_cast<char*>(rows_.back().data());
    gather_rows(table, numbers, program.values[own].type, tables[own], shapes[i], i, memory);
    inputs[i] = memory;
    key_.shapes[i] = shapes[i];
  }
}

}  // namespace onnxfuse
