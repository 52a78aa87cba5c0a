// Fuzzing of pooling with the channels last: attributes and shapes that nobody should trust, and what comes out.
//
//   fuzz_nhwc_pool [runs] [seed]
// Where a run is small enough it happens on memory of exactly the size, so that AddressSanitizer sees one element too
// many, and its results are held against plain loops.
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "nodes/nhwc_pool/nhwc_pool.h"
#include "tests/fuzz/fuzz_conv_nodes.h"
#include "tests/fuzz/fuzz_tensors.h"

namespace {

using namespace onnxfuse;
using fuzz::below;
using fuzz::count_of;
using fuzz::expect;
using fuzz::expect_reason;
using fuzz::one_of;

// One element of the result: all taps are looked at, wherever they are.
float plain_result(const NhwcPool& node, const NhwcPoolPlan& plan, const float* x, int64_t pixel, int64_t channel) {
  const ConvGeometry& g = plan.geometry;
  const size_t rank = node.windows.spatial_rank();
  const int64_t places[2] = {pixel / g.out[2] % g.out[1], pixel % g.out[2]};
  double sum = 0;
  float most = -std::numeric_limits<float>::infinity();
  int64_t count = 0;
  for (int64_t tap = 0; tap < g.kernel[1] * g.kernel[2]; ++tap) {
    const int64_t taps[2] = {tap / g.kernel[2], tap % g.kernel[2]};
    int64_t at[2];
    bool inside = true;
    bool padded = true;
    for (size_t d = 0; d < 2; ++d) {
      at[d] = places[d] * g.strides[d + 1] - g.pads[d + 1] + taps[d] * g.dilations[d + 1];
      const int64_t end_pad = d + rank < 2 ? 0 : node.windows.pads[2 * rank - 2 + d];
      inside = inside && at[d] >= 0 && at[d] < g.in[d + 1];
      padded = padded && at[d] < g.in[d + 1] + end_pad;
    }
    count += node.counts_padding ? padded : inside;
    if (!inside) continue;
    const int64_t image = pixel / g.out[2] / g.out[1];
    const float value = x[((image * g.in[1] + at[0]) * g.in[2] + at[1]) * g.in_channels + channel];
    sum += value;
    most = value > most ? value : most;
  }
  return node.maximum ? most : static_cast<float>(sum / static_cast<double>(count));
}

void check_results(const NhwcPool& node, const NhwcPoolPlan& plan) {
  int64_t read = 0;
  int64_t made = 0;
  element_count(plan.key.shapes[0], &read);
  element_count(plan.output, &made);
  const auto x = fuzz::integers(read);
  const auto out = fuzz::memory_of(made);
  for (int64_t i = 0; i < made; ++i) out[static_cast<size_t>(i)] = 77.0f;
  run_nhwc_pool(node, plan, x.get(), out.get(), fuzz::kHost);
  for (int64_t i = 0; i < made; ++i) {
    const float wanted = plain_result(node, plan, x.get(), i / plan.geometry.in_channels, i % plan.geometry.in_channels);
    const float found = out[static_cast<size_t>(i)];
    const bool same = node.maximum ? found == wanted : std::abs(found - wanted) <= 1e-5f;
    expect(same || (std::isnan(found) && std::isnan(wanted)), "a wrong result");
  }
}

fuzz::Attributes random_node(size_t rank) {
  fuzz::Attributes made;
  const auto list = [&](const char* name, size_t count, std::initializer_list<int64_t> values) {
    for (size_t i = 0; i < count; ++i) made.lists[name].push_back(below(60) == 0 ? one_of({32767, 40}) : one_of(values));
  };
  made.texts["operator"] = below(2) == 0 ? "MaxPool" : "AveragePool";
  list("kernel_shape", rank, {1, 2, 2, 3, 3, 5, 7});
  list("strides", rank, {1, 1, 2, 2, 3, 5});
  list("dilations", rank, {1, 1, 1, 2, 3});
  list("pads", 2 * rank, {0, 0, 1, 2});
  for (size_t i = 0; i < 2 * rank && below(20) != 0; ++i) {
    made.lists["pads"][i] %= made.lists["kernel_shape"][i % rank];
  }
  made.numbers["ceil_mode"] = one_of({0, 1});
  made.numbers["count_include_pad"] = one_of({0, 1});
  if (below(4) != 0) return made;
  static const char* const kFlags[] = {"ceil_mode", "count_include_pad"};
  switch (below(5)) {
    case 0: fuzz::spoil_text(&made.texts["operator"]); break;
    case 1: made.numbers[kFlags[below(2)]] = one_of({-1, 2, INT32_MAX, INT64_MIN}); break;
    case 2: made.numbers.erase(kFlags[below(2)]); break;
    case 3: made.lists.erase(std::next(made.lists.begin(), static_cast<ptrdiff_t>(below(made.lists.size())))); break;
    default: {
      auto& numbers = std::next(made.lists.begin(), static_cast<ptrdiff_t>(below(made.lists.size())))->second;
      numbers[below(numbers.size())] = one_of({-1, 0, 1, 32768, INT32_MAX, int64_t{1} << 40, INT64_MAX, INT64_MIN});
    }
  }
  return made;
}

// A shape that mostly fits; sometimes of more elements than fit 64 bits.
Shape random_shape(int rank) {
  Shape x;
  x.rank = below(60) == 0 ? static_cast<int>(below(6)) : rank;
  for (int d = 0; d < x.rank; ++d) {
    int64_t& size = x.dims[static_cast<size_t>(d)];
    size = d == 0 ? one_of({1, 1, 2, 3, 0}) : one_of({1, 2, 4, 5, 7, 8, 9, 16, 24});
    if (below(100) == 0) size = one_of({0, 1 << 16, INT32_MAX, int64_t{1} << 40, INT64_MAX});
  }
  if (x.rank > 1 && below(20) != 0) x.dims[static_cast<size_t>(x.rank - 1)] = 1 + static_cast<int64_t>(below(70));
  return x;
}

void check_node() {
  const size_t rank = below(40) == 0 ? 3 : 1 + below(2);
  const fuzz::Attributes attributes = random_node(rank);
  NhwcPool node;
  std::string error;
  if (!read_nhwc_pool(attributes.source(), below(60) == 0 ? below(4) : 1, &node, &error)) return expect_reason(error);
  NhwcPoolPlan plan;
  if (!make_nhwc_pool_plan(node, {{random_shape(node.rank())}}, &plan, &error)) return expect_reason(error);
  if (count_of(plan.key.shapes[0]) >= 0 && count_of(plan.output) >= 0) check_results(node, plan);
}

}  // namespace

int main(int argc, char** argv) { return fuzz::run(argc, argv, check_node); }
