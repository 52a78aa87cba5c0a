#include "nodes/squeeze_excite/squeeze_excite.h"

#include <algorithm>
#include <utility>

#include "convolution/conv_node.h"
#include "figures/squeeze_excite.h"
#include "kernels/kernels.h"
#include "platform/cache_lines.h"
#include "platform/denormals.h"
#include "platform/integers.h"
#include "runtime/parts.h"
#include "runtime/workspace.h"

namespace onnxfuse {
namespace {

// Channels that come last are added up so many at once, and so many pixels in one part.
constexpr int64_t kLastChannels = 64;
constexpr int64_t kPartRows = 256;
// Results that a product computes at once.
constexpr int64_t kRows = 8;

bool fail(std::string problem, std::string* error) {
  *error = std::move(problem);
  return false;
}

bool read_part(const AttributeSource& source, const char* name, Program* program, std::string* error) {
  if (!read_whole_program(source, name, program, error)) return false;
  const bool fits = program->values[0].type == DType::f32 && program->outputs.size() == 1 &&
                    output_type(*program, 0) == DType::f32;
  return fits || fail("the " + std::string(name) + " attribute does not make one tensor of float32 from another", error);
}

// Whether the weights are for a product with so many channels of tensors of this rank.
bool check_weights(const Shape& weights, int rank, int64_t channels, size_t input, std::string* error) {
  bool fits = weights.rank == rank && weights.dims[0] > 0 && weights.dims[1] == channels;
  for (int d = 2; fits && d < rank; ++d) fits = weights.dims[static_cast<size_t>(d)] == 1;
  return fits || fail("input " + std::to_string(input) + " of shape " + to_string(weights) + " is no matrix for " +
                          std::to_string(channels) + " channels of rank " + std::to_string(rank), error);
}

// The plan of a Program for the result of a product, of which the operands are inputs of the node from `first` on.
bool plan_part(const Program& program, const char* name, const Shape& result, const PlanKey& key, size_t first,
               std::shared_ptr<const Plan>* plan, std::string* error) {
  std::vector<Shape> shapes{result};
  const auto begin = key.shapes.begin() + static_cast<ptrdiff_t>(first);
  shapes.insert(shapes.end(), begin, begin + static_cast<ptrdiff_t>(program.input_count) - 1);
  std::vector<Shape> operands;
  if (!resolve_whole_program(program, name, shapes, &operands, error)) return false;
  *plan = make_plan(program, {std::move(shapes)}, error);
  return *plan != nullptr;
}

struct Means {
  const float* x;
  float* means;
  int64_t count;
  int64_t size;  // of a channel
  int64_t at_once;
  int64_t channels;
};

void compute_means(const Means& run, int64_t unit) {
  const DenormalsAsZeros zeros;
  const int64_t first = unit * run.at_once;
  const int64_t count = std::min(run.at_once, run.count - first);
  kernels().row_means(run.means + first, run.x + first * run.size, static_cast<size_t>(count),
                      static_cast<size_t>(run.size));
}

// The same where the channels come last: a unit is some of an image's.  Sums are of many parts, for the error of each grows
// with its length.
void compute_last_means(const Means& run, int64_t unit) {
  const DenormalsAsZeros zeros;
  const int64_t units = divide_up(run.channels, run.at_once);
  const int64_t image = unit / units;
  const int64_t first = unit % units * run.at_once;
  const auto count = static_cast<size_t>(std::min(run.at_once, run.channels - first));
  float* const means = run.means + image * run.channels + first;
  std::fill_n(means, count, 0.0f);
  for (int64_t row = 0; row < run.size; row += kPartRows) {
    kernels().add_rows(means, run.x + (image * run.size + row) * run.channels + first, static_cast<size_t>(run.channels),
                       static_cast<size_t>(std::min(kPartRows, run.size - row)), count);
  }
  for (size_t c = 0; c < count; ++c) means[c] /= static_cast<float>(run.size);
}

// out[n][r] = sum over c of weights[r][c] * input[n][c]
struct Products {
  const float* weights;
  const float* input;
  float* out;
  int64_t batch;
  int64_t rows;
  int64_t depth;
  int64_t at_once;
};

void compute_products(const Products& run, int64_t unit) {
  const DenormalsAsZeros zeros;
  const int64_t first = unit * run.at_once;
  const int64_t last = std::min(first + run.at_once, run.batch * run.rows);
  for (int64_t i = first; i < last;) {
    const int64_t row = i % run.rows;
    const int64_t count = std::min(run.rows - row, last - i);
    const auto depth = static_cast<size_t>(run.depth);
    kernels().conv_dots({run.weights + row * run.depth, depth, run.input + i / run.rows * run.depth, depth, depth,
                         run.out + i, 1, 1, static_cast<size_t>(count), 1});
    i += count;
  }
}

}  // namespace

bool read_squeeze_excite(const AttributeSource& source, size_t inputs, SqueezeExcite* node, std::string* error) {
  if (!read_part(source, "squeeze_program", &node->squeeze, error)) return false;
  if (!read_part(source, "program", &node->excite, error)) return false;
  int64_t last = 0;
  if (source.number("nhwc", &last) && last != 0 && last != 1) return fail("the attribute nhwc is not 0 or 1", error);
  node->nhwc = last == 1;
  return inputs == node->inputs() || fail("the node has " + std::to_string(inputs) + " inputs, but its programs take " +
                                              std::to_string(node->inputs()), error);
}

bool make_squeeze_excite_plan(const SqueezeExcite& node, const PlanKey& key, SqueezeExcitePlan* plan,
                              std::string* error) {
  const Shape& x = key.shapes[0];
  if (x.rank < 3) return fail("input 0 of shape " + to_string(x) + " has no spatial dimensions", error);
  plan->key = key;
  plan->batch = x.dims[0];
  plan->channels = x.dims[static_cast<size_t>(node.nhwc ? x.rank - 1 : 1)];
  int64_t count = 0;
  if (!element_count(x, &count) || plan->channels == 0 || (count == 0 && plan->batch > 0)) {
    return fail("input 0 of shape " + to_string(x) + " has channels without elements, or too many", error);
  }
  if (count > 0) plan->size = count / plan->batch / plan->channels;
  const Shape& first = key.shapes[1];
  const Shape& second = key.shapes[node.excite_weights()];
  if (!check_weights(first, x.rank, plan->channels, 1, error)) return false;
  plan->squeezed = first.dims[0];
  if (!check_weights(second, x.rank, plan->squeezed, node.excite_weights(), error)) return false;
  plan->excited = second.dims[0];

  Shape squeezed = x;
  std::fill_n(squeezed.dims.begin() + 2, x.rank - 2, 1);
  plan->output = squeezed;
  squeezed.dims[1] = plan->squeezed;
  plan->output.dims[1] = plan->excited;
  int64_t gated = 0;
  if (!element_count(squeezed, &gated) || !element_count(plan->output, &count)) {
    return fail("the output of shape " + to_string(plan->output) + " has too many elements", error);
  }
  if (!plan_part(node.squeeze, "squeeze_program", squeezed, key, node.squeeze_operands(), &plan->squeeze, error) ||
      !plan_part(node.excite, "program", plan->output, key, node.excite_operands(), &plan->excite, error)) {
    return false;
  }
  const auto add = [plan](size_t bytes) {
    const size_t begin = plan->bytes;
    plan->bytes += round_up(bytes, kCacheLine);
    return begin;
  };
  add(static_cast<size_t>(plan->batch * plan->channels) * sizeof(float));
  plan->products = add(static_cast<size_t>(std::max(gated, count)) * sizeof(float));
  plan->gated = add(static_cast<size_t>(gated) * sizeof(float));
  plan->operands = add(std::max(node.squeeze.input_count, node.excite.input_count) * sizeof(const void*));
  plan->scratch = add(std::max(plan->squeeze->scratch_bytes, plan->excite->scratch_bytes));
  return true;
}

void run_squeeze_excite(const SqueezeExcite& node, const SqueezeExcitePlan& plan, const std::vector<const void*>& inputs,
                        void* output, const Host& host) {
  if (plan.batch == 0) return;
  const RunMemory memory(host, plan.bytes);
  auto* const base = static_cast<char*>(memory.data());
  auto* const means = reinterpret_cast<float*>(base);
  auto* const products = reinterpret_cast<float*>(base + plan.products);
  auto* const gated = reinterpret_cast<float*>(base + plan.gated);
  auto* const operands = reinterpret_cast<const void**>(base + plan.operands);

  const int64_t channels = plan.batch * plan.channels;
  Means sums{static_cast<const float*>(inputs[0]), means, channels, plan.size,
             std::clamp<int64_t>(kGateElements / plan.size, 1, channels), plan.channels};
  if (node.nhwc) {
    sums.at_once = channels * plan.size <= kGateElements ? plan.channels : std::min(kLastChannels, plan.channels);
    const int64_t units = plan.batch * divide_up(plan.channels, sums.at_once);
    run_parts(host, units, [&](int64_t unit) { compute_last_means(sums, unit); });
  } else {
    run_parts(host, divide_up(channels, sums.at_once), [&](int64_t unit) { compute_means(sums, unit); });
  }

  const auto multiply = [&](size_t weights, const float* input, int64_t rows, int64_t depth) {
    const int64_t all = plan.batch * rows;
    const int64_t most = std::max<int64_t>(kGateProducts / depth, 1);
    const int64_t at_once = round_up(divide_up(all, divide_up(all, most)), kRows);  // even shares
    const Products run{static_cast<const float*>(inputs[weights]), input, products, plan.batch, rows, depth, at_once};
    run_parts(host, divide_up(all, at_once), [&](int64_t unit) { compute_products(run, unit); });
  };
  const auto finish = [&](const Program& program, const Plan& part, size_t first, void* out) {
    operands[0] = products;
    std::copy_n(inputs.begin() + static_cast<ptrdiff_t>(first), program.input_count - 1, operands + 1);
    run_plan(program, part, {operands, &out, base + plan.scratch}, host);
  };
  multiply(1, means, plan.squeezed, plan.channels);
  finish(node.squeeze, *plan.squeeze, node.squeeze_operands(), gated);
  multiply(node.excite_weights(), gated, plan.excited, plan.squeezed);
  finish(node.excite, *plan.excite, node.excite_operands(), output);
}

}  // namespace onnxfuse
