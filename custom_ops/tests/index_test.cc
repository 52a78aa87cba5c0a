// The index code on tensors of more than 2^31 elements: shapes, collapsing, tiles, and the executor's addresses.
//
// The tensors are reserved but not committed address space, of which only the pages that are looked at become memory.
// A small table of plain kernels stands in for the library's, so that this program is compiled in a moment.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "plan/plan.h"
#include "program/program.h"
#include "program/program_shapes.h"
#include "program/shape.h"
#include "runtime/executor.h"

namespace onnxfuse {

namespace {

template <int Mask>
void add(void* out, const void* const* in, size_t n) {
  const auto* a = static_cast<const uint8_t*>(in[0]);
  const auto* b = static_cast<const uint8_t*>(in[1]);
  for (size_t i = 0; i < n; ++i) {
    static_cast<uint8_t*>(out)[i] = static_cast<uint8_t>(a[Mask & 1 ? 0 : i] + b[Mask & 2 ? 0 : i]);
  }
}

void repeat(const RepeatedElements& elements) {
  for (int64_t row = 0; row < elements.rows; ++row) {
    char* const out = elements.out + row * static_cast<int64_t>(elements.bytes);
    for (size_t i = 0; i < elements.bytes; ++i) out[i] = elements.from[row * elements.step + static_cast<int64_t>(i % elements.size)];
  }
}

}  // namespace

const KernelTable& kernels() {
  static const KernelTable table = [] {
    KernelTable result{};
    result.find_op = [](Op, DType, unsigned scalars) -> Kernel {
      return scalars == 0 ? add<0> : scalars == 1 ? add<1> : add<2>;
    };
    result.stream = [](void* out, const void* in, size_t bytes) { std::memcpy(out, in, bytes); };
    result.repeat_elements = repeat;
    return result;
  }();
  return table;
}

}  // namespace onnxfuse

namespace {

using namespace onnxfuse;

int failures = 0;

#define CHECK(condition)                                                    \
  do {                                                                      \
    if (!(condition)) {                                                     \
      ++failures;                                                           \
      std::printf("%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);   \
    }                                                                       \
  } while (false)

constexpr int64_t k2To31 = int64_t{1} << 31;

Shape shape_of(const std::vector<int64_t>& dims) {
  Shape shape;
  shape.rank = static_cast<int>(dims.size());
  for (size_t d = 0; d < dims.size(); ++d) shape.dims[d] = dims[d];
  return shape;
}

int64_t count_of(const Shape& shape) {
  int64_t count = -1;
  CHECK(element_count(shape, &count));
  return count;
}

void test_shapes() {
  int64_t count = 0;
  CHECK(count_of(shape_of({k2To31 + 1, 3})) == 3 * k2To31 + 3);
  CHECK(count_of(shape_of({})) == 1);
  CHECK(count_of(shape_of({k2To31 * k2To31, 0, k2To31 * k2To31})) == 0);
  CHECK(!element_count(shape_of({k2To31, k2To31}), &count));  // 2^62 elements may have more than 2^63 bytes
  CHECK(!element_count(shape_of({k2To31, k2To31, k2To31, k2To31, k2To31}), &count));
  CHECK(!element_count(shape_of({-1}), &count));
  Shape both;
  CHECK(broadcast(shape_of({k2To31 + 5, 1}), shape_of({3}), &both) && both == shape_of({k2To31 + 5, 3}));
  CHECK(!broadcast(shape_of({k2To31 + 5}), shape_of({5}), &both));  // equal in the low 32 bits only
}

void test_collapse() {
  // [2, 3, 2^31, 5] with a vector along the second dimension, and itself.
  const Shape shape = shape_of({2, 3, k2To31, 5});
  const Collapsed collapsed = collapse(shape, {whole_view(shape), whole_view(shape_of({3, 1, 1}))});
  CHECK((collapsed.dims == std::vector<int64_t>{2, 3, 5 * k2To31}));
  CHECK((collapsed.strides[0] == std::vector<int64_t>{15 * k2To31, 5 * k2To31, 1}));
  CHECK((collapsed.strides[1] == std::vector<int64_t>{0, 1, 0}));
  CHECK((collapse(shape, {whole_view(shape)}).dims == std::vector<int64_t>{30 * k2To31}));
}

bool slice_view(const Shape& tensor, const std::vector<AxisSlice>& slices, View* view) {
  Value input{};
  input.slices = slices;
  std::string error;
  return input_view(input, tensor, view, &error);
}

void test_slices() {
  // Every third of the last 2^31 of each row, and the second half of the rows.
  const Shape tensor = shape_of({4, 3 * k2To31});
  const AxisSlice rows{0, 2, INT64_MAX, 1};
  const AxisSlice columns{-1, -3 * k2To31 + 3, INT64_MAX, 3};
  View view;
  CHECK(slice_view(tensor, {rows, columns}, &view));
  CHECK(view.shape == shape_of({2, k2To31 - 1}));
  CHECK(view.offset == 6 * k2To31 + 3);
  CHECK(view.strides[0] == 3 * k2To31 && view.strides[1] == 3);
  CHECK((collapse(view.shape, {view}).strides[0] == std::vector<int64_t>{3 * k2To31, 3}));
  // Steps and bounds beyond the axis.
  CHECK(slice_view(tensor, {{1, 1, INT64_MAX, INT64_MAX}}, &view) && view.shape == shape_of({4, 1}) && view.offset == 1);
  CHECK(slice_view(tensor, {{1, INT64_MIN, INT64_MIN, 1}}, &view) && view.shape == shape_of({4, 0}));
  CHECK(!slice_view(tensor, {{2, 0, 1, 1}}, &view) && !slice_view(tensor, {{-3, 0, 1, 1}}, &view));
  // Of nothing, beside which any sizes may be.
  CHECK(slice_view(shape_of({0, k2To31 * k2To31, k2To31 * k2To31}), {{1, 5, INT64_MAX, 2}}, &view) && view.offset == 0);
}

uint8_t* reserve(int64_t bytes) {
  void* memory = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    std::printf("cannot reserve %lld bytes of address space\n", static_cast<long long>(bytes));
    std::exit(77);
  }
  return static_cast<uint8_t*>(memory);
}

// The element of `operand`, broadcast to `shape`, that belongs to element `at` of the whole.
int64_t source_index(const Shape& shape, const Shape& operand, int64_t at) {
  int64_t index = 0;
  int64_t step = 1;
  for (int i = 0; i < shape.rank; ++i) {
    if (operand.from_back(i) != 1) index += at % shape.from_back(i) * step;
    step *= operand.from_back(i);
    at /= shape.from_back(i);
  }
  return index;
}

// y = x + s (bytes), `s` of a broadcast shape: the tiles around some elements are run and give those elements.
void test_add(const char* name, const std::vector<int64_t>& x_dims, const std::vector<int64_t>& s_dims, Access access) {
  Program program;
  std::string error;
  CHECK(parse_program("onnxfuse 1\ninput u8 broadcast\ninput u8 broadcast\nadd u8 0 1\noutput 2\n", &program, &error));
  PlanKey key;
  key.shapes = {shape_of(x_dims), shape_of(s_dims)};
  const auto plan = make_plan(program, key, &error);
  CHECK(plan != nullptr && plan->stages.size() == 1);
  const Stage& stage = plan->stages[0];
  const int64_t elements = count_of(key.shapes[0]);
  CHECK(elements > k2To31 && stage.elements == elements && plan->output_shapes[0] == key.shapes[0]);
  bool found = false;
  for (const Slot& slot : stage.slots) found |= slot.place == Place::Input && slot.index == 1 && slot.access == access;
  if (!found) std::printf("%s: the operand is not accessed as the case wants\n", name);
  CHECK(found);
  if (stage.by_rows) {
    CHECK(stage.tiles == elements / stage.columns * stage.tiles_per_row);
    CHECK(stage.tiles_per_row * stage.tile >= stage.columns);
    CHECK((stage.tiles_per_row - 1) * stage.tile < stage.columns);
  } else {
    CHECK(stage.tiles * stage.tile >= elements && (stage.tiles - 1) * stage.tile < elements);
  }

  const int64_t s_elements = count_of(key.shapes[1]);
  uint8_t* x = reserve(elements);
  uint8_t* s = reserve(s_elements);
  uint8_t* y = reserve(elements);
  const void* inputs[] = {x, s};
  void* outputs[] = {y};
  for (const int64_t at : {int64_t{0}, k2To31 - 1, k2To31, k2To31 + 1, elements / 2, 2 * k2To31 - 1, 2 * k2To31,
                           elements - 2, elements - 1}) {
    if (at >= elements) continue;
    uint8_t& operand = s[source_index(key.shapes[0], key.shapes[1], at)];
    x[at] = static_cast<uint8_t>(at % 97 + 1);
    operand = 101;
    const int64_t tile = stage.by_rows ? at / stage.columns * stage.tiles_per_row + at % stage.columns / stage.tile
                                       : at / stage.tile;
    CHECK(tile < stage.tiles);
    run_tiles(program, stage, {inputs, outputs, nullptr}, tile, tile + 1);
    if (y[at] != static_cast<uint8_t>(x[at] + 101)) {
      ++failures;
      std::printf("%s: element %lld is wrong\n", name, static_cast<long long>(at));
    }
    operand = 0;
  }
  munmap(x, static_cast<size_t>(elements));
  munmap(s, static_cast<size_t>(s_elements));
  munmap(y, static_cast<size_t>(elements));
}

// A value between stages that is larger than 4 GB gets all of its bytes.
void test_scratch() {
  Program program;
  std::string error;
  CHECK(parse_program("onnxfuse 1\ninput u8 broadcast\ninput u8 broadcast\nadd u8 0 0\nadd u8 2 1\noutput 3\n", &program, &error));
  PlanKey key;
  key.shapes = {shape_of({3 * k2To31, 1}), shape_of({2})};
  const auto plan = make_plan(program, key, &error);
  CHECK(plan != nullptr && plan->stages.size() == 2);
  CHECK(plan->scratch_bytes >= static_cast<size_t>(3 * k2To31) && plan->scratch_bytes < static_cast<size_t>(3 * k2To31) + 4096);
  CHECK(plan->stages[1].elements == 6 * k2To31);
}

}  // namespace

int main() {
  test_shapes();
  test_collapse();
  test_slices();
  test_add("equal shapes", {3, k2To31 / 2 + 7, 3}, {3, k2To31 / 2 + 7, 3}, Access::Whole);
  test_add("a scalar", {k2To31 + 12345}, {}, Access::Fixed);
  test_add("per channel", {3, k2To31 - 12345}, {3, 1}, Access::Row);
  test_add("per column of long rows", {k2To31 / 300 + 4000000, 1000}, {1000}, Access::Row);
  test_add("a long row for all", {3, k2To31 - 12345}, {k2To31 - 12345}, Access::Row);
  test_add("a repeating row", {k2To31 / 3 + 999, 7}, {7}, Access::Gathered);
  test_add("a long outer dimension", {k2To31 + 999, 3}, {k2To31 + 999, 1}, Access::Gathered);
  test_add("a middle dimension", {90000, 8000, 5}, {8000, 1}, Access::Gathered);
  test_scratch();
  if (failures != 0) std::printf("%d failures\n", failures);
  return failures != 0;
}
