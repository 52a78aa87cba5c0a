// The part of nhwc_conv_plan.h that runs: units of sums, and the Programs before and behind them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "convolution/conv_axis.h"
#include "kernels/kernels.h"
#include "nodes/nhwc_conv/nhwc_channel_rows.h"
#include "nodes/nhwc_conv/nhwc_conv_plan.h"
#include "nodes/nhwc_conv/nhwc_copies.h"
#include "nodes/nhwc_conv/nhwc_segments.h"
#include "platform/cache_lines.h"
#include "platform/denormals.h"
#include "platform/integers.h"
#include "runtime/parts.h"
#include "runtime/workspace.h"

namespace onnxfuse {
namespace {

struct Run {
  const NhwcConv& node;
  const NhwcConvPlan& plan;
  const std::vector<const void*>& inputs;
  const std::vector<void*>& outputs;  // of the epilogue, or of the sums alone
  const float* x = nullptr;           // as X, or its copy
  const float* addends = nullptr;
  const float* single_weights = nullptr;  // of the convolution of single channels
  const float* single_addends = nullptr;
  const float* wide_addends = nullptr;    // of what is made for it
  Bounds bounds{};  // of results that go straight to the output
  Bounds single_bounds{};
  Bounds wide_bounds{};
};

ConvRange part_of(int64_t size, int64_t part, int64_t at_once) {
  return {part * at_once, std::min((part + 1) * at_once, size)};
}

// What a thread computes units in.
class Worker {
 public:
  explicit Worker(const Run& run)
      : run_(run),
        plan_(run.plan),
        g_(run.plan.geometry),
        memory_(plan_.bytes),
        results_(at<float>(plan_.results)),
        turned_(at<float>(plan_.turned)),
        joined_(at<float>(plan_.joined)),
        read_(at<float>(plan_.read)),
        wide_(at<float>(plan_.wide)),
        segments_(plan_, run.x, at<const float*>(plan_.segments_at), at<float>(plan_.zeros)),
        channel_rows_(plan_, run.single_weights, run.single_addends),
        operands_(at<const void*>(plan_.operands)) {
    std::fill_n(at<float>(plan_.zeros), plan_.zero_count, 0.0f);
  }

  void compute(int64_t unit) {
    if (plan_.taps == Taps::Planes) return compute_planes(unit);
    if (run_.node.by_channel()) return compute_channels(unit);
    run_.node.has_depthwise ? compute_pair(unit) : compute_filters(unit);
  }

 private:
  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(memory_.data()) + offset);
  }

  // Some filters for some pixels: those that follow one another, or all rows of some columns.
  void compute_filters(int64_t unit) {
    const ConvRange filters = part_of(g_.out_channels, unit % plan_.filter_units, plan_.filters_at_once);
    unit /= plan_.filter_units;
    const int64_t image = unit / plan_.pixel_units;
    unit %= plan_.pixel_units;
    NhwcPixels pixels{};
    if (plan_.by_columns) {
      pixels = pixels_of(image, rows_and_columns(unit));
    } else {
      const ConvRange part = part_of(plan_.pixels, unit, plan_.pixels_at_once);
      pixels = {image * plan_.pixels + part.begin, part.size()};
    }
    const bool joins = !run_.node.parts.empty();
    if (joins) join(pixels);
    if (plan_.taps == Taps::Own && plan_.prologue.plan != nullptr) {
      const int64_t channels = g_.in_channels;
      const int64_t first = pixels.first * channels;
      run_prologue(joins ? whole_tensor(joined_, first, sizeof(float)) : run_.inputs[0], joins,
                   {first, pixels.row_pixels * channels, g_.out[2] * channels, pixels.rows});
      segments_.point_to(read_, pixels.count());
    } else if (joins) {
      segments_.point_to(joined_, pixels.count());
    } else {
      segments_.find(pixels);
    }
    sum(pixels, filters);
  }

  // Puts the parts of X next to each other, pixel by pixel.
  void join(const NhwcPixels& pixels) {
    float* to = joined_;
    for (size_t i = 0; i < run_.node.parts.size(); ++i) {
      const int64_t channels = run_.node.parts[i];
      const auto* const part = static_cast<const float*>(run_.inputs[NhwcConv::part_input(i)]);
      for (int64_t row = 0; row < pixels.rows; ++row) {
        kernels().place_runs(to + row * pixels.row_pixels * g_.in_channels, static_cast<size_t>(g_.in_channels),
                             part + (pixels.first + row * g_.out[2]) * channels, static_cast<size_t>(channels),
                             static_cast<size_t>(pixels.row_pixels));
      }
      to += channels;
    }
  }

  // All filters for a part of some rows, whose pixels the convolution before makes.
  void compute_pair(int64_t unit) {
    const int64_t image = unit / plan_.pixel_units;
    const RowsAndColumns part = rows_and_columns(unit % plan_.pixel_units);
    const NhwcPixels pixels = pixels_of(image, part);
    const float* const x = read_by_rows(image, part.rows);
    if (plan_.prologue_route == Route::Straight) {
      channel_rows_.compute(x, image, part.rows, part.columns, {read_, nullptr, run_.single_bounds, 0, pixels.row_pixels});
    } else if (plan_.prologue_route == Route::Tiles) {
      const TileTarget target = prologue_target(pixels.row_pixels);
      channel_rows_.compute(x, image, part.rows, part.columns, {nullptr, &target, {}, 0, pixels.row_pixels});
    } else {
      channel_rows_.compute(x, image, part.rows, part.columns, {results_, nullptr, {}, 0, pixels.row_pixels});
      const int64_t channels = plan_.single.out_channels;
      const int64_t first = pixels.first * channels;
      run_prologue(whole_tensor(results_, first, sizeof(float)), true,
                   {first, pixels.row_pixels * channels, g_.out[2] * channels, pixels.rows});
    }
    segments_.point_to(read_, pixels.count());
    sum(pixels, all_filters());
  }

  // Where a tensor is, or would be, of which as much is there as single channels read for some rows.
  const float* read_by_rows(int64_t image, const ConvRange& rows) {
    return run_.node.has_expansion ? expand(image, rows) : run_.x;
  }

  // Makes what single channels read for some rows.  Returns where the whole tensor would be.
  const float* expand(int64_t image, const ConvRange& rows) {
    const ConvGeometry& s = plan_.single;
    const int64_t top = std::clamp<int64_t>(rows.begin * s.strides[1] - s.pads[1], 0, s.in[1]);
    const int64_t last = (rows.end - 1) * s.strides[1] - s.pads[1] + (s.kernel[1] - 1) * s.dilations[1];
    const int64_t bottom = std::clamp(last + 1, top, s.in[1]);
    const int64_t first = (image * s.in[1] + top) * s.in[2];
    const int64_t count = (bottom - top) * s.in[2];
    const auto* const whole = static_cast<const float*>(whole_tensor(wide_, first * s.in_channels, sizeof(float)));
    if (count == 0) return whole;
    const int64_t channels = plan_.expansion.in_channels;
    NhwcSums sums{};
    sums.input = NhwcSegments::point(at<const float*>(plan_.wide_segments), run_.x + first * channels, count, channels);
    sums.pixels = static_cast<size_t>(NhwcSegments::padded(count));
    sums.segments = 1;
    sums.length = static_cast<size_t>(channels);
    sums.block_pitch = static_cast<size_t>(channels) * kNhwcBlock;
    sums.weights = static_cast<const float*>(run_.inputs[run_.node.expansion_weights()]);
    sums.addends = run_.wide_addends;
    sums.out_pitch = sums.filters = static_cast<size_t>(s.in_channels);
    sums.fetches = is_new(sums.weights);
    if (plan_.expanded_route == Route::Straight) {
      sums.out = wide_;
      sums.bounds = run_.wide_bounds;
      kernels().nhwc_sums(sums);
      return whole;
    }
    sums.out = at<float>(plan_.wide_sums);
    take_operands(run_.node.expanded_operands(), run_.node.expanded);
    if (plan_.expanded_route == Route::Tiles) {
      const TileTarget made = target(plan_.expanded, wide_, 0, s.in_channels, 0, static_cast<int64_t>(sums.pixels));
      sums.target = &made;
      kernels().nhwc_sums(sums);
      return whole;
    }
    kernels().nhwc_sums(sums);
    operands_[0] = whole_tensor(sums.out, first * s.in_channels, sizeof(float));
    void* out = whole_tensor(wide_, first * s.in_channels, sizeof(float));
    run_elements(plan_.expanded.program, plan_.expanded.plan->stages[0], {operands_, &out, nullptr},
                 {first * s.in_channels, count * s.in_channels});
    return whole;
  }

  void compute_channels(int64_t unit) {
    const int64_t image = unit / plan_.pixel_units;
    const auto [rows, columns] = rows_and_columns(unit % plan_.pixel_units);
    const NhwcPixels pixels = pixels_of(image, {rows, columns});
    const float* const x = read_by_rows(image, rows);  // before others take operands
    TileTarget target{};
    NhwcChannelRows::Place place{results_, nullptr, {}, 0, columns.size()};
    if (plan_.epilogue_route == Route::Straight) {
      place = {static_cast<float*>(run_.outputs[0]), nullptr, run_.bounds, pixels.first, g_.out[2]};
    } else if (plan_.epilogue_route == Route::Tiles) {
      target = output_target(pixels, 0);
      place = {nullptr, &target, {}, 0, columns.size()};
    }
    for (int64_t column = columns.begin; column < columns.end; column += plan_.tile_columns) {
      const ConvRange at_once{column, std::min(column + plan_.tile_columns, columns.end)};
      channel_rows_.compute(x, image, rows, at_once, place);
      place.pixel += at_once.size();
    }
    if (plan_.epilogue_route == Route::Memory) finish(pixels, all_filters());
  }

  // All filters for some rows.
  void compute_planes(int64_t unit) {
    constexpr auto block = static_cast<int64_t>(kNhwcBlock);
    const int64_t image = unit / plan_.pixel_units;
    const RowsAndColumns part = rows_and_columns(unit % plan_.pixel_units);
    const NhwcPixels pixels = pixels_of(image, part);
    float* const rows = at<float>(plan_.plane_rows);
    NhwcPlanes planes{};
    planes.input = rows;
    planes.offsets = plan_.offsets.data();
    planes.products = static_cast<size_t>(g_.products());
    planes.stride = static_cast<size_t>(g_.strides[2]);
    planes.pixels = static_cast<size_t>(g_.out[2]);
    planes.weights = static_cast<const float*>(run_.inputs[1]);
    planes.block_pitch = static_cast<size_t>(g_.products() * block);
    planes.addends = run_.addends;
    planes.out = plan_.epilogue_route == Route::Straight ? static_cast<float*>(run_.outputs[0]) + pixels.first * g_.out_channels : results_;
    planes.out_pitch = planes.filters = static_cast<size_t>(g_.out_channels);
    TileTarget target{};
    if (plan_.epilogue_route == Route::Straight) {
      planes.bounds = run_.bounds;
    } else if (plan_.epilogue_route == Route::Tiles) {
      target = output_target(pixels, 0);
      planes.target = &target;
    }
    for (int64_t row = part.rows.begin; row < part.rows.end; ++row) {
      copy_planes(plan_, run_.x, image, row, rows);
      kernels().nhwc_planes(planes);
      planes.target_pixel += planes.pixels;
      if (planes.target == nullptr) planes.out += planes.pixels * planes.out_pitch;
    }
    if (plan_.epilogue_route == Route::Memory) finish(pixels, all_filters());
  }

  struct RowsAndColumns {
    ConvRange rows;
    ConvRange columns;
  };

  // Of the output; of a pair both convolutions have the same.
  RowsAndColumns rows_and_columns(int64_t unit) const {
    const int64_t row_parts = divide_up(g_.out[1], plan_.rows_at_once);
    const int64_t column_parts = divide_up(g_.out[2], plan_.columns_at_once);
    const int64_t row_part = plan_.by_columns ? unit % row_parts : unit / column_parts;
    const int64_t column_part = plan_.by_columns ? unit / row_parts : unit % column_parts;
    return {part_of(g_.out[1], row_part, plan_.rows_at_once), part_of(g_.out[2], column_part, plan_.columns_at_once)};
  }

  NhwcPixels pixels_of(int64_t image, const RowsAndColumns& part) const {
    return {(image * g_.out[1] + part.rows.begin) * g_.out[2] + part.columns.begin, part.columns.size(),
            part.rows.size()};
  }

  // Where the epilogue puts results of pixels, from filter `filter` on.
  TileTarget output_target(const NhwcPixels& pixels, int64_t filter) {
    const int64_t element = pixels.first * g_.out_channels + filter;
    take_epilogue_operands();
    return target(plan_.epilogue, static_cast<float*>(run_.outputs[0]) + element, element, g_.out_channels,
                  g_.out[2] * g_.out_channels, pixels.row_pixels);
  }

  // Where the prologue puts results, in rows of so many that follow one another.
  TileTarget prologue_target(int64_t row_pixels) {
    take_prologue_operands();
    const int64_t channels = plan_.single.out_channels;
    return target(plan_.prologue, read_, 0, channels, row_pixels * channels, row_pixels);
  }

  TileTarget target(const ConvEpilogue& program, float* out, int64_t element, int64_t pixel_pitch, int64_t row_pitch,
                    int64_t row_pixels) {
    TileTarget made{};
    made.out = out;
    made.pixel_pitch = static_cast<size_t>(pixel_pitch);
    made.row_pitch = static_cast<size_t>(row_pitch);
    made.row_pixels = static_cast<size_t>(row_pixels);
    made.links = links_;
    made.count = links_of_tiles(program.program, program.plan->stages[0], operands_, element, links_);
    return made;
  }

  ConvRange all_filters() const { return {0, g_.out_channels}; }

  // Sums of pixels whose segments are found, on their way to the output.
  void sum(const NhwcPixels& pixels, const ConvRange& filters) {
    NhwcSums sums = sums_of(pixels.count(), filters);
    const bool whole = NhwcSegments::padded(pixels.count()) == pixels.count();  // nothing behind them is written
    if (plan_.epilogue_route == Route::Straight && whole) {
      sums.out = static_cast<float*>(run_.outputs[0]) + pixels.first * g_.out_channels + filters.begin;
      sums.out_pitch = static_cast<size_t>(g_.out_channels);
      sums.bounds = run_.bounds;
      return kernels().nhwc_sums(sums);
    }
    if (plan_.epilogue_route == Route::Tiles && whole) {
      const TileTarget target = output_target(pixels, filters.begin);
      sums.target = &target;
      return kernels().nhwc_sums(sums);
    }
    kernels().nhwc_sums(sums);
    finish(pixels, filters);
  }

  // Those that go to the memory for results.
  NhwcSums sums_of(int64_t count, const ConvRange& filters) {
    constexpr auto block = static_cast<int64_t>(kNhwcBlock);
    NhwcSums sums{};
    sums.input = segments_.data();
    sums.pixels = static_cast<size_t>(NhwcSegments::padded(count));
    sums.segments = static_cast<size_t>(plan_.segments);
    sums.length = static_cast<size_t>(plan_.length);
    sums.block_pitch = static_cast<size_t>(g_.products() * block);
    sums.weights = static_cast<const float*>(run_.inputs[1]) + filters.begin / block * g_.products() * block;
    sums.addends = run_.addends + filters.begin;
    sums.out = results_;
    sums.out_pitch = static_cast<size_t>(filters.size());
    sums.filters = static_cast<size_t>(filters.size());
    sums.fetches = is_new(sums.weights);
    if (g_.group > 1) {
      sums.group_filters = static_cast<size_t>(g_.filters());
      sums.first_filter = static_cast<size_t>(filters.begin);
      sums.all_filters = static_cast<size_t>(g_.out_channels);
    }
    return sums;
  }

  // Whether this thread has summed up with other weights last, so that these are not in its core's caches.
  static bool is_new(const float* weights) {
    static thread_local const float* last = nullptr;
    return std::exchange(last, weights) != weights;
  }

  // What the prologue makes of runs of elements, one after the other.  `from` is where element 0 of a tensor is, or would be if
  // the runs `follow` one another there too.
  void run_prologue(const void* from, bool follow, ElementRuns runs) {
    void* out = whole_tensor(read_, runs.first, sizeof(float));
    operands_[0] = from;
    take_prologue_operands();
    move_on(&runs);
    if (!follow) runs.moving = nullptr;
    runs.moving_output = &out;
    run_elements(plan_.prologue.program, plan_.prologue.plan->stages[0], {operands_, &out, nullptr}, runs);
  }

  void take_prologue_operands() { take_operands(run_.node.first_operand(), run_.node.prologue); }

  void take_epilogue_operands() {
    take_operands(run_.inputs.size() - run_.node.conv.epilogue_operands(), run_.node.epilogue);
  }

  // Those of a Program after its first input, which are the node's from `first` on.
  void take_operands(size_t first, const Program& program) {
    std::copy_n(run_.inputs.begin() + static_cast<long>(first), program.input_count - 1, operands_ + 1);
  }

  // Makes the first operand one whose runs follow one another.
  void move_on(ElementRuns* runs) const {
    runs->moving = operands_;
    runs->by = (runs->length - runs->step) * static_cast<int64_t>(sizeof(float));
  }

  // Runs the epilogue on the results of some filters for pixels.  Whole rows follow one another in the output.
  void finish(const NhwcPixels& pixels, const ConvRange& filters) {
    if (pixels.row_pixels == g_.out[2] || pixels.rows == 1) {
      return finish_run(pixels.first, pixels.count(), filters, results_);
    }
    const int64_t all = g_.out_channels;
    if (run_.node.nhwc_output && filters.size() == all) {
      return finish_runs(results_, {pixels.first * all, pixels.row_pixels * all, g_.out[2] * all, pixels.rows});
    }
    const float* results = results_;
    for (int64_t row = 0; row < pixels.rows; ++row, results += pixels.row_pixels * filters.size()) {
      finish_run(pixels.first + row * g_.out[2], pixels.row_pixels, filters, results);
    }
  }

  // The same for `count` pixels that follow one another: of one image, if its channels come first.
  void finish_run(int64_t first, int64_t count, const ConvRange& filters, const float* results) {
    const int64_t all = g_.out_channels;
    if (!run_.node.nhwc_output) {
      kernels().transpose_rows(turned_, static_cast<size_t>(count), results, static_cast<size_t>(filters.size()),
                               static_cast<size_t>(count), static_cast<size_t>(filters.size()));
      const int64_t image = first / plan_.out_pixels;
      const int64_t begin = (image * all + filters.begin) * plan_.out_pixels + first % plan_.out_pixels;
      return finish_runs(turned_, {begin, count, plan_.out_pixels, filters.size()});
    }
    const int64_t begin = first * all + filters.begin;
    if (filters.size() == all) {
      finish_runs(results, {begin, count * all, 0, 1});
    } else {
      finish_runs(results, {begin, filters.size(), all, count});
    }
  }

  void finish_runs(const float* results, ElementRuns runs) {
    if (runs.step == runs.length) runs = {runs.first, runs.length * runs.count};  // of channels that are computed whole
    if (plan_.epilogue.plan == nullptr) {
      float* to = static_cast<float*>(run_.outputs[0]) + runs.first;
      for (int64_t i = 0; i < runs.count; ++i, to += runs.step, results += runs.length) {
        std::copy_n(results, runs.length, to);
      }
      return;
    }
    operands_[0] = whole_tensor(results, runs.first, sizeof(float));
    take_epilogue_operands();
    move_on(&runs);
    const Stage& stage = plan_.epilogue.plan->stages[0];
    run_elements(plan_.epilogue.program, stage, {operands_, run_.outputs.data(), nullptr}, runs);
  }

  const Run& run_;
  const NhwcConvPlan& plan_;
  const ConvGeometry& g_;
  const Workspace memory_;
  float* const results_;
  float* const turned_;
  float* const joined_;
  float* const read_;
  float* const wide_;
  const NhwcSegments segments_;
  const NhwcChannelRows channel_rows_;
  const void** const operands_;
  ChainLink links_[kMaxChainLinks];
};

// What a Program that only bounds its first input has its results within; its operands are inputs from `first` on.  If one is no
// number no result is, which is left to the addends.
Bounds take_bounds(const Run& run, const ConvEpilogue& program, size_t first) {
  if (program.program.outputs[0] == 0) return {};
  return bounds_of_tiles(program.program, program.plan->stages[0], run.inputs.data() + first - 1);
}

// The bias of a Program, whose operands are inputs from `first` on, with zeros behind it; or zeros.
Workspace copy_addends(const Run& run, const ConvEpilogue& program, size_t first, int64_t filters, const Bounds& bounds,
                       const float** addends) {
  const int64_t whole = round_up(filters, static_cast<int64_t>(kMaxFloats));
  Workspace memory(static_cast<size_t>(whole) * sizeof(float));
  auto* const to = static_cast<float*>(memory.data());
  *addends = to;
  if (std::isnan(bounds.low) || std::isnan(bounds.high)) {
    std::fill_n(to, whole, std::numeric_limits<float>::quiet_NaN());
    return memory;
  }
  const size_t bias = program.plan == nullptr ? 0 : program.bias;
  if (bias != 0) std::copy_n(static_cast<const float*>(run.inputs[first + bias - 1]), filters, to);
  std::fill(to + (bias != 0 ? filters : 0), to + whole, 0.0f);
  return memory;
}

// A whole tensor of float32, with the scratch of the plan that makes it or makes something of it.
class Whole {
 public:
  Whole(const Host& host, int64_t elements, const Plan& plan)
      : host_(host),
        plan_(plan),
        bytes_(round_up(static_cast<size_t>(elements) * sizeof(float), kCacheLine)),
        memory_(host, bytes_ + plan.scratch_bytes) {}

  void* elements() const { return memory_.data(); }

  // Runs the plan on its first input and the operands.
  void run(const Program& program, const void* first, const std::vector<const void*>& operands,
           void* const* outputs) const {
    std::vector<const void*> inputs{first};
    inputs.insert(inputs.end(), operands.begin(), operands.end());
    run_plan(program, plan_, {inputs.data(), outputs, static_cast<char*>(memory_.data()) + bytes_}, host_);
  }

 private:
  const Host& host_;
  const Plan& plan_;
  const size_t bytes_;
  const RunMemory memory_;
};

}  // namespace

void run_nhwc_conv(const NhwcConv& node, const NhwcConvPlan& plan, const std::vector<const void*>& inputs,
                   const std::vector<void*>& outputs, const Host& host) {
  const ConvGeometry& g = plan.geometry;
  if (plan.bytes == 0) return;  // no elements
  const size_t second = node.first_operand() + node.conv.prologue_operands();
  std::vector<void*> sums;
  Run run{node, plan, inputs, plan.whole_epilogue == nullptr ? outputs : sums};
  run.x = static_cast<const float*>(inputs[0]);
  std::optional<Whole> prepared;
  if (plan.whole_prologue != nullptr) {
    prepared.emplace(host, g.batch * plan.in_pixels * g.in_channels, *plan.whole_prologue);
    void* out = prepared->elements();
    prepared->run(node.prologue, inputs[0], {inputs.begin() + 2, inputs.begin() + static_cast<long>(second)}, &out);
    run.x = static_cast<const float*>(out);
  }
  std::optional<Whole> results;
  if (plan.whole_epilogue != nullptr) {
    results.emplace(host, g.batch * plan.out_pixels * g.out_channels, *plan.whole_epilogue);
    sums.push_back(results->elements());
  }
  if (plan.epilogue_route == Route::Straight) run.bounds = take_bounds(run, plan.epilogue, second);
  const Workspace addends = copy_addends(run, plan.epilogue, second, g.out_channels, run.bounds, &run.addends);
  run.single_addends = run.addends;
  run.single_weights = static_cast<const float*>(inputs[1]);
  std::optional<Workspace> single_addends;
  if (node.has_depthwise) {
    run.single_weights = static_cast<const float*>(inputs[2]);
    const size_t first = node.first_operand();
    if (plan.prologue_route == Route::Straight) run.single_bounds = take_bounds(run, plan.prologue, first);
    single_addends.emplace(
        copy_addends(run, plan.prologue, first, g.in_channels, run.single_bounds, &run.single_addends));
  }
  std::optional<Workspace> wide_addends;
  if (node.has_expansion) {
    const size_t first = node.expanded_operands();
    if (plan.expanded_route == Route::Straight) run.wide_bounds = take_bounds(run, plan.expanded, first);
    wide_addends.emplace(
        copy_addends(run, plan.expanded, first, g.in_channels, run.wide_bounds, &run.wide_addends));
  }
  const RunMemory copy = copy_input(plan, node.nhwc[0], host, &run.x);
  const int64_t units = plan.images * plan.pixel_units * plan.filter_units;
  const auto compute = [&](int64_t unit) {
    const DenormalsAsZeros zeros;
    Worker(run).compute(unit);
  };
  run_parts(host, units, compute, plan.alone);
  if (plan.whole_epilogue == nullptr) return;
  results->run(node.epilogue, sums[0], {inputs.begin() + static_cast<long>(second), inputs.end()}, outputs.data());
}

}  // namespace onnxfuse
