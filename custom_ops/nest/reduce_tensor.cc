#include "nest/reduce_tensor.h"

#include <algorithm>

#include "figures/nest.h"
#include "plan/cost.h"
#include "platform/integers.h"
#include "runtime/parts.h"

namespace onnxfuse {
namespace {

// Of columns so many, in all, are enough to share; and that many elements of theirs make a part else.
constexpr int64_t kManyColumns = 8192;
constexpr int64_t kColumnPart = 16384;
constexpr int64_t kLeastPart = 64;
// Columns at once: their results stay in the level 1 cache.
constexpr int64_t kMostColumns = 4096;
constexpr int64_t kLeastColumns = 256;
// Elements of rows at once.
constexpr int64_t kUnitElements = 4096;

int64_t count_of(const std::vector<Extent>& dims) {
  int64_t count = 1;
  for (const Extent& dim : dims) count *= dim.size;
  return count;
}

// Where things are in memory.
class Reducer {
 public:
  Reducer(const TensorReduction& reduction, const void* in, void* out, void* scratch)
      : plan_(reduction),
        geometry_(reduction.geometry),
        size_(static_cast<int64_t>(compute_size(reduction.type))),
        in_(static_cast<const char*>(in)),
        out_(static_cast<char*>(reduction.parts > 1 ? scratch : out)),
        kernels_(kernels().find_reduction(info(reduction.reduce).combine, reduction.type, reduction.map)) {}

  void run_unit(int64_t unit) const {
    if (geometry_.by_columns) {
      reduce_columns(unit);
    } else if (plan_.parts == 1) {
      const int64_t first = unit * plan_.unit_rows;
      const int64_t rows = std::min(plan_.unit_rows, geometry_.rows - first);
      reduce_rows(first * geometry_.run, rows, geometry_.run, geometry_.run, first);
    } else {
      reduce_segments(unit);
    }
  }

 private:
  const void* at(int64_t element) const { return in_ + element * size_; }

  void reduce_rows(int64_t element, int64_t rows, int64_t pitch, int64_t n, int64_t result) const {
    kernels_.rows({at(element), static_cast<size_t>(rows), static_cast<size_t>(pitch), static_cast<size_t>(n),
                   out_ + result * size_});
  }

  // A unit is some segments of a row, or a part of one.
  void reduce_segments(int64_t unit) const {
    const int64_t pieces = divide_up(geometry_.run, plan_.part);  // of a segment
    const Extent inner = geometry_.segments.empty() ? Extent{1, 0} : geometry_.segments.back();
    const int64_t together = divide_up(inner.size, plan_.unit_rows);
    const int64_t piece = unit % pieces;
    const int64_t group = unit / pieces % together;
    const int64_t others = geometry_.segment_count / inner.size;
    const int64_t other = unit / pieces / together % others;
    const int64_t row = unit / pieces / together / others;
    const int64_t first = group * plan_.unit_rows;
    const int64_t element = place_of(geometry_.outer, row) + place_of(geometry_.segments, other * inner.size + first) +
                            piece * plan_.part;
    const int64_t n = std::min(plan_.part, geometry_.run - piece * plan_.part);
    const int64_t result = row * plan_.parts + (other * inner.size + first) * pieces + piece;
    reduce_rows(element, std::min(plan_.unit_rows, inner.size - first), inner.stride, n, result);
  }

  // A unit is some columns of a part.
  void reduce_columns(int64_t unit) const {
    const int64_t strips = divide_up(geometry_.columns, plan_.unit_columns);
    const int64_t column = unit % strips * plan_.unit_columns;
    const int64_t part = unit / strips % plan_.parts;
    const int64_t row = unit / strips / plan_.parts;
    const Extent inner = geometry_.segments.empty() ? Extent{1, 0} : geometry_.segments.back();
    const int64_t first = part * plan_.part;
    const int64_t rows = std::min(plan_.part, inner.size - first);
    char* const out = out_ + ((row * plan_.parts + part) * geometry_.columns + column) * size_;
    for (int64_t other = 0; other * inner.size < geometry_.segment_count; ++other) {
      const int64_t element = place_of(geometry_.outer, row) +
                              place_of(geometry_.segments, other * inner.size + first) + column;
      kernels_.columns({at(element), static_cast<size_t>(rows), static_cast<size_t>(inner.stride),
                        static_cast<size_t>(std::min(plan_.unit_columns, geometry_.columns - column)), out, other == 0});
    }
  }

  const TensorReduction& plan_;
  const NestGeometry& geometry_;
  const int64_t size_;
  const char* const in_;
  char* const out_;
  const ReduceKernels kernels_;
};

}  // namespace

NestGeometry nest_geometry(const Shape& shape, const std::vector<int>& axes) {
  NestGeometry geometry;
  Shape results = shape;
  for (const int axis : axes) results.dims[static_cast<size_t>(shape.rank + axis)] = 1;
  int64_t elements = 0;
  element_count(shape, &elements);
  if (elements == 0) {  // other sizes may be any
    element_count(results, &geometry.rows);
    geometry.outer = {{geometry.rows, 0}};
    geometry.run = 0;
    return geometry;
  }
  std::vector<Extent> dims;  // from inner to outer, of which neighbours that both stay or both are reduced are one
  std::vector<bool> is_reduced;
  int64_t stride = 1;
  for (int d = 0; d < shape.rank; ++d) {
    const int64_t size = shape.from_back(d);
    if (size == 1) continue;
    const bool reduced = std::find(axes.begin(), axes.end(), -1 - d) != axes.end();
    if (!dims.empty() && is_reduced.back() == reduced) {
      dims.back().size *= size;
    } else {
      dims.push_back({size, stride});
      is_reduced.push_back(reduced);
    }
    stride *= size;
  }
  geometry.by_columns = !dims.empty() && !is_reduced[0];
  if (!dims.empty()) (geometry.by_columns ? geometry.columns : geometry.run) = dims[0].size;
  for (size_t d = dims.size(); d-- > 1;) (is_reduced[d] ? geometry.segments : geometry.outer).push_back(dims[d]);
  geometry.rows = count_of(geometry.outer);
  geometry.segment_count = count_of(geometry.segments);
  return geometry;
}

int64_t place_of(const std::vector<Extent>& dims, int64_t index) {
  int64_t place = 0;
  for (size_t d = dims.size(); d-- > 0;) {
    if (d == 0) return place + index * dims[0].stride;
    place += index % dims[d].size * dims[d].stride;
    index /= dims[d].size;
  }
  return place;
}

TensorReduction make_reduction(const Shape& shape, const std::vector<int>& axes, Reduce reduce, DType type, Mapped map) {
  TensorReduction made;
  made.geometry = nest_geometry(shape, axes);
  made.reduce = reduce;
  made.type = type;
  made.map = map;
  const NestGeometry& geometry = made.geometry;
  if (geometry.results() == 0) return made;
  const Extent inner = geometry.segments.empty() ? Extent{1, 0} : geometry.segments.back();
  if (geometry.by_columns) {
    const bool few = geometry.results() < kManyColumns && inner.size >= 2 * kLeastPart;
    made.part = few ? std::max(kLeastPart, round_up(kColumnPart / geometry.columns, kReducedRows)) : inner.size;
    made.parts = divide_up(inner.size, made.part);
    const int64_t share = std::clamp(geometry.columns / most_parts(), kLeastColumns, kMostColumns);
    const int64_t strips = divide_up(geometry.columns, share);
    made.unit_columns = round_up(divide_up(geometry.columns, strips), int64_t{16});
    made.units = divide_up(geometry.columns, made.unit_columns) * made.parts * geometry.rows;
  } else if (geometry.segments.empty() && geometry.run <= kPartElements) {
    made.unit_rows = std::max(round_up(kUnitElements / std::max<int64_t>(geometry.run, 1), int64_t{64}), int64_t{64});
    if (geometry.run > kUnitElements / 16) made.unit_rows = 16;
    made.units = divide_up(geometry.rows, made.unit_rows);
  } else {
    made.part = std::min(geometry.run, kPartElements);
    const int64_t pieces = divide_up(geometry.run, made.part);
    made.parts = geometry.segment_count * pieces;
    made.unit_rows = std::min(kPartElements / made.part, inner.size);
    made.units = geometry.rows * (geometry.segment_count / inner.size) * divide_up(inner.size, made.unit_rows) * pieces;
  }
  if (made.parts != 1) {
    made.scratch_bytes = static_cast<size_t>(made.parts * geometry.results()) * compute_size(type);
  }
  const double elements = static_cast<double>(geometry.results()) * static_cast<double>(geometry.reduced());
  const double work = elements * kReducedElementNanoseconds;
  made.tasks = parts_of(work, made.units);
  return made;
}

void finish_reduction(Reduce reduce, DType type, int64_t elements, void* results, int64_t count) {
  if (reduce != Reduce::ReduceMean) return;
  double by = static_cast<double>(std::max<int64_t>(elements, 1));
  auto narrow = static_cast<float>(by);
  const ChainLink division{Link::DivS, type == DType::f64 ? static_cast<void*>(&by) : &narrow, nullptr};
  kernels().chains[static_cast<int>(type)](results, results, &division, 1, static_cast<size_t>(count), Stores::Plain);
}

void run_reduction(const TensorReduction& reduction, const void* in, void* out, void* scratch, const Host& host) {
  const NestGeometry& geometry = reduction.geometry;
  if (geometry.results() == 0) return;
  const Reducer reducer(reduction, in, out, scratch);
  run_parts(host, reduction.tasks, [&](int64_t task) {
    const int64_t end = (task + 1) * reduction.units / reduction.tasks;
    for (int64_t unit = task * reduction.units / reduction.tasks; unit < end; ++unit) reducer.run_unit(unit);
  });
  if (reduction.parts != 1) {
    const ReduceKernels joins = kernels().find_reduction(info(reduction.reduce).combine, reduction.type, Mapped::Plain);
    const auto parts = static_cast<size_t>(reduction.parts);
    const auto columns = static_cast<size_t>(geometry.columns);
    if (!geometry.by_columns) {
      joins.rows({scratch, static_cast<size_t>(geometry.rows), parts, parts, out});
    } else {
      const size_t bytes = columns * compute_size(reduction.type);
      for (size_t row = 0; row < static_cast<size_t>(geometry.rows); ++row) {
        joins.columns({static_cast<const char*>(scratch) + row * parts * bytes, parts, columns, columns,
                       static_cast<char*>(out) + row * bytes, true});
      }
    }
  }
  finish_reduction(reduction.reduce, reduction.type, geometry.reduced(), out, geometry.results());
}

}  // namespace onnxfuse
