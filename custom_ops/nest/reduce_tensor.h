// The reduction of a dense tensor along some of its axes.
#ifndef ONNXFUSE_REDUCE_TENSOR_H_
#define ONNXFUSE_REDUCE_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "program/shape.h"
#include "runtime/host.h"

namespace onnxfuse {

// Dimensions of a dense tensor, from outer to inner.
struct Extent {
  int64_t size;
  int64_t stride;  // elements
};

// How a tensor's elements lie that come to one result each.  Where the innermost dimension is reduced, results are of rows:
// each of `segments` runs of `run` elements.  Else they are of `columns` that lie side by side: of elements one in each
// of `segments` rows.
struct NestGeometry {
  std::vector<Extent> outer;     // dimensions that stay, but for the columns
  std::vector<Extent> segments;  // dimensions that are reduced, but for the run
  int64_t rows = 1;              // elements of `outer`
  int64_t segment_count = 1;
  int64_t run = 1;
  int64_t columns = 1;
  bool by_columns = false;

  int64_t reduced() const { return segment_count * run; }
  int64_t results() const { return rows * columns; }
};

// Of a tensor with at least as many dimensions as the axes, which are negative, tell.
NestGeometry nest_geometry(const Shape& shape, const std::vector<int>& axes);

// Where element `index` of some dimensions lies.
int64_t place_of(const std::vector<Extent>& dims, int64_t index);

// What is reduced, and how.  Results are joined of parts of fixed sizes, whoever computes them: they do not depend on threads.
struct TensorReduction {
  NestGeometry geometry;
  Reduce reduce{};
  DType type{};  // in which it is computed
  Mapped map = Mapped::Plain;
  int64_t parts = 1;        // of each result
  int64_t part = 0;         // elements of a run, or segments of the innermost dimension of these, in a part
  int64_t units = 0;        // of work, which threads share
  int64_t unit_rows = 0;    // rows, or segments, in a unit
  int64_t unit_columns = 0;
  int64_t tasks = 1;
  size_t scratch_bytes = 0;
};

// Elements of a row that are joined first, where there are more.
constexpr int64_t kPartElements = 8192;

TensorReduction make_reduction(const Shape& shape, const std::vector<int>& axes, Reduce reduce, DType type, Mapped map);

// `scratch` is aligned to a cache line.
void run_reduction(const TensorReduction& reduction, const void* in, void* out, void* scratch, const Host& host);

// Divides results by the number of elements that each is of, for a mean; that of none stays 0.
void finish_reduction(Reduce reduce, DType type, int64_t elements, void* results, int64_t count);

}  // namespace onnxfuse

#endif  // ONNXFUSE_REDUCE_TENSOR_H_
