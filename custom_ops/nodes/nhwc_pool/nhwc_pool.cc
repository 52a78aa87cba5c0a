#include "nodes/nhwc_pool/nhwc_pool.h"

#include <algorithm>
#include <utility>

#include "convolution/conv_axis.h"
#include "figures/convolution.h"
#include "figures/nhwc_pool.h"
#include "kernels/kernels.h"
#include "plan/cost.h"
#include "runtime/parts.h"

namespace onnxfuse {
namespace {

constexpr size_t kMostSpatial = 2;

bool fail(std::string problem, std::string* error) {
  *error = std::move(problem);
  return false;
}

bool read_flag(const AttributeSource& source, const char* name, bool* flag, std::string* error) {
  int64_t number = 0;
  if (!source.number(name, &number) || (number != 0 && number != 1)) {
    return fail(std::string("the attribute ") + name + " is not 0 or 1", error);
  }
  *flag = number == 1;
  return true;
}

// As in ONNX Runtime, every window then has a tap beyond the padding, unless it has dilations.
bool read_pads(const AttributeSource& source, ConvAttributes* windows, std::string* error) {
  const size_t rank = windows->spatial_rank();
  if (!read_conv_numbers(source, "pads", 2 * rank, 0, &windows->pads, error)) return false;
  for (size_t i = 0; i < 2 * rank; ++i) {
    if (windows->pads[i] < windows->kernel[i % rank]) continue;
    return fail("an element of the attribute pads is not less than that of kernel_shape", error);
  }
  return true;
}

bool resolve(const NhwcPool& node, const Shape& x, NhwcPoolPlan* plan, std::string* error) {
  const ConvAttributes& windows = node.windows;
  const size_t rank = windows.spatial_rank();
  if (x.rank != node.rank()) {
    return fail("input 0 of shape " + to_string(x) + " does not have " + std::to_string(node.rank()) + " dimensions",
                error);
  }
  ConvGeometry& g = plan->geometry;
  plan->output = x;
  g.batch = x.dims[0];
  g.group = g.in_channels = g.out_channels = x.from_back(0);
  for (size_t d = 0; d < rank; ++d) {
    const size_t to = kMaxSpatialRank - rank + d;
    g.in[to] = x.dims[d + 1];
    if (!pool_output_size(node, d, g.in[to], &g.out[to])) {
      return fail("the output for input 0 of shape " + to_string(x) + " has no elements along dimension " +
                      std::to_string(d + 1) + ", or too many", error);
    }
    g.kernel[to] = windows.kernel[d];
    g.strides[to] = windows.strides[d];
    g.dilations[to] = windows.dilations[d];
    g.pads[to] = windows.pads[d];
    plan->output.dims[d + 1] = g.out[to];
  }
  g.output = plan->output;
  plan->counted = g;
  if (!node.counts_padding) return true;
  for (size_t d = 0; d < rank; ++d) {
    const size_t to = kMaxSpatialRank - rank + d;
    plan->counted.in[to] += windows.pads[d] + windows.pads[d + rank];
    plan->counted.pads[to] = 0;
  }
  return true;
}

struct Run {
  const NhwcPool& node;
  const NhwcPoolPlan& plan;
  const float* x;
  float* out;
};

// Some pixels of a row: those at the left and at the right that some taps miss one by one, those between them together.
void compute_row(const Run& run, int64_t image, int64_t row, const ConvRange& columns, float* out) {
  const ConvGeometry& g = run.plan.geometry;
  const int64_t channels = g.in_channels;
  const ConvRange height = taps_inside(g, 1, row);
  const int64_t y = row * g.strides[1] - g.pads[1] + height.begin * g.dilations[1];
  for (int64_t column = columns.begin; column < columns.end;) {
    const ConvRange width = taps_inside(g, 2, column);
    const int64_t last = same_taps_end(g, 2, {column, columns.end});
    NhwcWindows windows{};
    if (height.size() > 0 && width.size() > 0) {
      const int64_t x = column * g.strides[2] - g.pads[2] + width.begin * g.dilations[2];
      windows.input = run.x + ((image * g.in[1] + y) * g.in[2] + x) * channels;
      windows.height = static_cast<size_t>(height.size());
      windows.width = static_cast<size_t>(width.size());
    }
    windows.pixel_pitch = g.strides[2] * channels;
    windows.row_pitch = g.dilations[1] * g.in[2] * channels;
    windows.column_pitch = g.dilations[2] * channels;
    windows.out = out;
    windows.pixels = static_cast<size_t>(last - column);
    windows.channels = static_cast<size_t>(channels);
    if (run.node.maximum) {
      kernels().nhwc_greatest(windows);
    } else {
      const ConvGeometry& counted = run.plan.counted;
      windows.divisor = static_cast<float>(taps_inside(counted, 1, row).size() * taps_inside(counted, 2, column).size());
      kernels().nhwc_means(windows);
    }
    out += (last - column) * channels;
    column = last;
  }
}

// A share of the pixels of all images.
void compute_task(const Run& run, int64_t task) {
  const ConvGeometry& g = run.plan.geometry;
  const auto begin_of = [&run](int64_t t) { return t * run.plan.pixels / run.plan.tasks; };
  const int64_t end = begin_of(task + 1);
  for (int64_t pixel = begin_of(task); pixel < end;) {
    const int64_t row = pixel / g.out[2];
    const int64_t column = pixel % g.out[2];
    const ConvRange columns{column, std::min(column + end - pixel, g.out[2])};
    compute_row(run, row / g.out[1], row % g.out[1], columns, run.out + pixel * g.in_channels);
    pixel += columns.size();
  }
}

}  // namespace

bool read_nhwc_pool(const AttributeSource& source, size_t inputs, NhwcPool* node, std::string* error) {
  *node = NhwcPool{};
  std::string text;
  if (!source.text("operator", &text) || (text != "MaxPool" && text != "AveragePool")) {
    return fail("the attribute operator is not MaxPool or AveragePool", error);
  }
  node->maximum = text == "MaxPool";
  ConvAttributes& windows = node->windows;
  if (!read_conv_windows(source, &windows, error)) return false;
  if (windows.spatial_rank() > kMostSpatial) return fail("the attribute kernel_shape has more than 2 elements", error);
  if (!read_pads(source, &windows, error)) return false;
  windows.output_padding.assign(windows.spatial_rank(), 0);
  if (!read_flag(source, "ceil_mode", &node->rounds_up, error)) return false;
  if (!read_flag(source, "count_include_pad", &node->counts_padding, error)) return false;
  return inputs == 1 || fail("the node has " + std::to_string(inputs) + " inputs, not 1", error);
}

// The formula of ONNX's MaxPool and AveragePool: a window does not begin in the padding at the end.
bool pool_output_size(const NhwcPool& node, size_t d, int64_t size, int64_t* output) {
  const ConvAttributes& windows = node.windows;
  const int64_t stride = windows.strides[d];
  const int64_t extent = windows.dilations[d] * (windows.kernel[d] - 1) + 1;
  const int64_t pads = windows.pads[d] + windows.pads[d + windows.spatial_rank()];
  int64_t padded = 0;
  int64_t room = 0;  // by which the padded input is larger than a window, and to round up
  if (size < 1 || __builtin_add_overflow(size, pads, &padded)) return false;
  if (__builtin_add_overflow(padded, (node.rounds_up ? stride - 1 : 0) - extent, &room) || room < 0) return false;
  *output = room / stride + 1;
  if ((*output - 1) * stride >= size + windows.pads[d]) --*output;
  return true;
}

bool make_nhwc_pool_plan(const NhwcPool& node, const PlanKey& key, NhwcPoolPlan* plan, std::string* error) {
  plan->key = key;
  if (!resolve(node, key.shapes[0], plan, error)) return false;
  int64_t count = 0;
  if (!element_count(key.shapes[0], &count) || !element_count(plan->output, &count)) {
    return fail("input 0 of shape " + to_string(key.shapes[0]) + " has too many elements, or the output has", error);
  }
  if (count == 0) return true;
  const ConvGeometry& g = plan->geometry;
  plan->pixels = g.batch * g.out[1] * g.out[2];
  const double taps = static_cast<double>(g.kernel[1]) * static_cast<double>(g.kernel[2]);
  const double work = static_cast<double>(count) * (taps * kPoolTapNanoseconds + kPoolResultNanoseconds);
  plan->tasks = parts_of(work, plan->pixels);
  return true;
}

void run_nhwc_pool(const NhwcPool& node, const NhwcPoolPlan& plan, const void* input, void* output,
                   const Host& host) {
  if (plan.pixels == 0) return;
  const Run run{node, plan, static_cast<const float*>(input), static_cast<float*>(output)};
  run_parts(host, plan.tasks, [&](int64_t task) { compute_task(run, task); });
}

}  // namespace onnxfuse
