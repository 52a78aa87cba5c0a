#include "nodes/nhwc_conv/nhwc_conv_worker.h"

#include <algorithm>
#include <utility>

#include "figures/nhwc_kernels.h"
#include "nodes/nhwc_conv/nhwc_copies.h"
#include "platform/integers.h"
#include "runtime/parts.h"

namespace onnxfuse {
namespace {

ConvRange part_of(int64_t size, int64_t part, int64_t at_once) {
  return {part * at_once, std::min((part + 1) * at_once, size)};
}

}  // namespace

void NhwcConvWorker::compute(int64_t unit) {
  if (plan_.taps == Taps::Planes) return compute_planes(unit);
  if (run_.node.by_channel()) return compute_channels(unit);
  run_.node.has_depthwise ? compute_pair(unit) : compute_filters(unit);
}

void NhwcConvWorker::compute_filters(int64_t unit) {
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

void NhwcConvWorker::join(const NhwcPixels& pixels) {
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

void NhwcConvWorker::compute_pair(int64_t unit) {
  const int64_t image = unit / plan_.pixel_units;
  const RowsAndColumns part = rows_and_columns(unit % plan_.pixel_units);
  const NhwcPixels pixels = pixels_of(image, part);
  const float* const x = read_by_rows(image, part.rows);
  if (plan_.prologue_route == Route::Straight) {
    channel_rows_.compute(x, image, part.rows, part.columns,
                          {read_, nullptr, run_.single_bounds, 0, pixels.row_pixels});
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

const float* NhwcConvWorker::read_by_rows(int64_t image, const ConvRange& rows) {
  return run_.node.has_expansion ? expand(image, rows) : run_.x;
}

const float* NhwcConvWorker::expand(int64_t image, const ConvRange& rows) {
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

void NhwcConvWorker::compute_channels(int64_t unit) {
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

void NhwcConvWorker::compute_planes(int64_t unit) {
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
  const bool straight = plan_.epilogue_route == Route::Straight;
  planes.out = straight ? static_cast<float*>(run_.outputs[0]) + pixels.first * g_.out_channels : results_;
  planes.out_pitch = planes.filters = static_cast<size_t>(g_.out_channels);
  TileTarget target{};
  if (straight) {
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

NhwcConvWorker::RowsAndColumns NhwcConvWorker::rows_and_columns(int64_t unit) const {
  const int64_t row_parts = divide_up(g_.out[1], plan_.rows_at_once);
  const int64_t column_parts = divide_up(g_.out[2], plan_.columns_at_once);
  const int64_t row_part = plan_.by_columns ? unit % row_parts : unit / column_parts;
  const int64_t column_part = plan_.by_columns ? unit / row_parts : unit % column_parts;
  return {part_of(g_.out[1], row_part, plan_.rows_at_once), part_of(g_.out[2], column_part, plan_.columns_at_once)};
}

NhwcPixels NhwcConvWorker::pixels_of(int64_t image, const RowsAndColumns& part) const {
  return {(image * g_.out[1] + part.rows.begin) * g_.out[2] + part.columns.begin, part.columns.size(),
          part.rows.size()};
}

TileTarget NhwcConvWorker::output_target(const NhwcPixels& pixels, int64_t filter) {
  const int64_t element = pixels.first * g_.out_channels + filter;
  take_epilogue_operands();
  return target(plan_.epilogue, static_cast<float*>(run_.outputs[0]) + element, element, g_.out_channels,
                g_.out[2] * g_.out_channels, pixels.row_pixels);
}

TileTarget NhwcConvWorker::prologue_target(int64_t row_pixels) {
  take_prologue_operands();
  const int64_t channels = plan_.single.out_channels;
  return target(plan_.prologue, read_, 0, channels, row_pixels * channels, row_pixels);
}

TileTarget NhwcConvWorker::target(const ConvEpilogue& program, float* out, int64_t element, int64_t pixel_pitch,
                                  int64_t row_pitch, int64_t row_pixels) {
  TileTarget made{};
  made.out = out;
  made.pixel_pitch = static_cast<size_t>(pixel_pitch);
  made.row_pitch = static_cast<size_t>(row_pitch);
  made.row_pixels = static_cast<size_t>(row_pixels);
  made.links = links_;
  made.count = links_of_tiles(program.program, program.plan->stages[0], operands_, element, links_);
  return made;
}

void NhwcConvWorker::sum(const NhwcPixels& pixels, const ConvRange& filters) {
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

NhwcSums NhwcConvWorker::sums_of(int64_t count, const ConvRange& filters) {
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

bool NhwcConvWorker::is_new(const float* weights) {
  static thread_local const float* last = nullptr;
  return std::exchange(last, weights) != weights;
}

void NhwcConvWorker::run_prologue(const void* from, bool follow, ElementRuns runs) {
  void* out = whole_tensor(read_, runs.first, sizeof(float));
  operands_[0] = from;
  take_prologue_operands();
  move_on(&runs);
  if (!follow) runs.moving = nullptr;
  runs.moving_output = &out;
  run_elements(plan_.prologue.program, plan_.prologue.plan->stages[0], {operands_, &out, nullptr}, runs);
}

void NhwcConvWorker::take_epilogue_operands() {
  take_operands(run_.inputs.size() - run_.node.conv.epilogue_operands(), run_.node.epilogue);
}

void NhwcConvWorker::take_operands(size_t first, const Program& program) {
  std::copy_n(run_.inputs.begin() + static_cast<ptrdiff_t>(first), program.input_count - 1, operands_ + 1);
}

void NhwcConvWorker::move_on(ElementRuns* runs) const {
  runs->moving = operands_;
  runs->by = (runs->length - runs->step) * static_cast<int64_t>(sizeof(float));
}

void NhwcConvWorker::finish(const NhwcPixels& pixels, const ConvRange& filters) {
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

void NhwcConvWorker::finish_run(int64_t first, int64_t count, const ConvRange& filters, const float* results) {
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

void NhwcConvWorker::finish_runs(const float* results, ElementRuns runs) {
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

}  // namespace onnxfuse
