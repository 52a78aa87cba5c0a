// Fuzzing of Concats along the last dimension: shapes that nobody should trust, and what comes out.
//
//   fuzz_nhwc_concat [runs] [seed]
// Where a run is small enough it happens on memory of exactly the size, so that AddressSanitizer sees one element too
// many.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nodes/nhwc_concat/nhwc_concat.h"
#include "tests/fuzz/fuzz_conv_nodes.h"
#include "tests/fuzz/fuzz_tensors.h"

namespace {

using namespace onnxfuse;
using fuzz::below;
using fuzz::count_of;
using fuzz::expect;
using fuzz::expect_reason;
using fuzz::one_of;

int64_t any_size() { return below(100) == 0 ? one_of({INT32_MAX, int64_t{1} << 40, INT64_MAX}) : one_of({0, 1, 2, 3, 5, 8}); }

int64_t any_length() { return below(100) == 0 ? any_size() : static_cast<int64_t>(below(70)); }

// Shapes that mostly differ in the last dimension alone.
std::vector<Shape> random_shapes() {
  Shape first;
  first.rank = static_cast<int>(below(60) == 0 ? 0 : 1 + below(5));
  for (int d = 0; d < first.rank; ++d) first.dims[static_cast<size_t>(d)] = any_size();
  std::vector<Shape> shapes(below(60) == 0 ? 0 : 1 + below(6), first);
  for (Shape& shape : shapes) {
    if (shape.rank > 0) shape.dims[static_cast<size_t>(shape.rank - 1)] = any_length();
    if (below(100) == 0) shape.rank = static_cast<int>(below(6));
    if (below(100) == 0) shape.dims[below(4)] = any_size();
  }
  return shapes;
}

void check_results(const NhwcConcatPlan& plan, int64_t count) {
  std::vector<std::unique_ptr<float[]>> memory;
  std::vector<const void*> inputs;
  for (const Shape& shape : plan.key.shapes) {
    int64_t elements = 0;
    expect(element_count(shape, &elements), "a part is larger than the whole");
    memory.push_back(fuzz::integers(elements));
    inputs.push_back(memory.back().get());
  }
  const auto out = fuzz::memory_of(count);
  run_nhwc_concat(plan, inputs, out.get(), fuzz::kHost);
  const float* found = out.get();
  for (int64_t row = 0; row < plan.rows; ++row) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const int64_t length = plan.key.shapes[i].from_back(0);
      const float* const run = memory[i].get() + row * length;
      expect(std::equal(run, run + length, found), "a wrong result");
      found += length;
    }
  }
  expect(found == out.get() + count, "too few results");
}

void check_node() {
  NhwcConcatPlan plan;
  std::string error;
  if (!make_nhwc_concat_plan({random_shapes()}, &plan, &error)) return expect_reason(error);
  if (count_of(plan.output) >= 0) check_results(plan, count_of(plan.output));
}

}  // namespace

int main(int argc, char** argv) { return fuzz::run(argc, argv, check_node); }
