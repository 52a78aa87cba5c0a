// The part of nhwc_conv_plan.h that runs: what reads the pixels, the sums, and the Programs.
#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "conv_axis.h"
#include "integers.h"
#include "kernels.h"
#include "nhwc_conv_plan.h"
#include "ort_call.h"
#include "workspace.h"

namespace onnxfuse {
namespace {

// Pixels of which one unit changes the layout.
constexpr int64_t kCopiedPixels = 128;
constexpr size_t kCacheLine = 64;

struct Run {
  const NhwcConv& node;
  const NhwcConvPlan& plan;
  const std::vector<const void*>& inputs;
  const std::vector<void*>& outputs;  // of the epilogue, or of the sums alone
  const float* x = nullptr;           // as X, or its copy
  float* copy = nullptr;
  const float* addends = nullptr;
  const float* single_weights = nullptr;  // of the convolution of single channels
  const float* single_addends = nullptr;
  std::atomic<bool> failed{false};
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
        read_(at<float>(plan_.read)),
        segments_(at<const float*>(plan_.segments_at)),
        zeros_(at<float>(plan_.zeros)),
        padded_rows_(at<float>(plan_.padded_rows)),
        operands_(at<const void*>(plan_.operands)) {
    std::fill_n(zeros_, plan_.zero_count, 0.0f);
  }

  void compute(int64_t unit) {
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
    if (plan_.by_columns) {
      const auto [rows, columns] = rows_and_columns(unit, g_);
      find_segments_of_rows(image, rows, columns);
      return sum_rows(image, rows, columns, filters);
    }
    const ConvRange pixels = part_of(plan_.pixels, unit, plan_.pixels_at_once);
    const int64_t first = image * plan_.pixels + pixels.begin;
    find_segments(first, pixels.size());
    if (plan_.straight && padded(pixels.size()) == pixels.size()) {
      float* const out = static_cast<float*>(run_.outputs[0]) + first * g_.out_channels + filters.begin;
      return sum(pixels.size(), filters, out, g_.out_channels, plan_.relu);
    }
    if (plan_.finishes_tiles && padded(pixels.size()) == pixels.size()) {
      const TileTarget target = output_target(first, pixels.size(), filters.begin);
      return sum(pixels.size(), filters, results_, filters.size(), false, &target);
    }
    sum(pixels.size(), filters, results_, filters.size(), false);
    finish(image, pixels, filters, results_);
  }

  // The same of a part of some rows, whose segments are found.
  void sum_rows(int64_t image, const ConvRange& rows, const ConvRange& columns, const ConvRange& filters) {
    const int64_t count = rows.size() * columns.size();
    if (plan_.finishes_tiles && padded(count) == count) {
      const int64_t first = (image * g_.out[1] + rows.begin) * g_.out[2] + columns.begin;
      const TileTarget target = output_target(first, columns.size(), filters.begin);
      return sum(count, filters, results_, filters.size(), false, &target);
    }
    sum(count, filters, results_, filters.size(), false);
    finish_rows(image, rows, columns, filters);
  }

  // All filters for a part of some rows, whose pixels the convolution before makes.
  void compute_pair(int64_t unit) {
    const ConvGeometry& s = plan_.single;
    const int64_t image = unit / plan_.pixel_units;
    const auto [rows, columns] = rows_and_columns(unit % plan_.pixel_units, s);
    if (plan_.prepares_tiles) {
      const TileTarget target = prologue_target(columns.size());
      compute_rows(image, rows, columns, {0, columns.size(), &target});
    } else {
      compute_rows(image, rows, columns, {0, columns.size(), nullptr});
      const int64_t first = ((image * s.out[1] + rows.begin) * s.out[2] + columns.begin) * s.out_channels;
      run_prologue(whole_tensor(results_, first, sizeof(float)), true, read_,
                   {first, columns.size() * s.out_channels, s.out[2] * s.out_channels, rows.size()});
    }
    point_to_pixels(read_, rows.size() * columns.size());
    sum_rows(image, rows, columns, all_filters());
  }

  // Where the epilogue puts results from pixel `first` of all on, in rows of so many, and from filter `filter` on.
  TileTarget output_target(int64_t first, int64_t row_pixels, int64_t filter) {
    const int64_t element = first * g_.out_channels + filter;
    take_epilogue_operands();
    return target(plan_.epilogue, static_cast<float*>(run_.outputs[0]) + element, element, g_.out_channels,
                  g_.out[2] * g_.out_channels, row_pixels);
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

  void sum(int64_t count, const ConvRange& filters, float* out, int64_t out_pitch, bool relu,
           const TileTarget* target = nullptr) {
    constexpr auto block = static_cast<int64_t>(kNhwcBlock);
    NhwcSums sums{};
    sums.input = segments_;
    sums.pixels = static_cast<size_t>(padded(count));
    sums.segments = static_cast<size_t>(plan_.segments);
    sums.length = static_cast<size_t>(plan_.length);
    sums.block_pitch = static_cast<size_t>(g_.products() * block);
    sums.weights = static_cast<const float*>(run_.inputs[1]) + filters.begin / block * g_.products() * block;
    sums.addends = run_.addends + filters.begin;
    sums.out = out;
    sums.out_pitch = static_cast<size_t>(out_pitch);
    sums.filters = static_cast<size_t>(filters.size());
    sums.target = target;
    sums.relu = relu;
    sums.fetches = is_new(sums.weights);
    kernels().nhwc_sums(sums);
  }

  // Whether this thread has summed up with other weights last, so that these are not in its core's caches.
  static bool is_new(const float* weights) {
    static thread_local const float* last = nullptr;
    return std::exchange(last, weights) != weights;
  }

  static int64_t padded(int64_t pixels) { return static_cast<int64_t>(whole_nhwc_pixels(static_cast<size_t>(pixels))); }

  // The segments of `count` pixels from `first` of all on.
  void find_segments(int64_t first, int64_t count) {
    const int64_t channels = g_.in_channels;
    if (plan_.product) {
      const float* x = run_.x + first * channels;
      if (plan_.prologue.plan != nullptr) {
        run_prologue(run_.inputs[0], false, read_, {first * channels, count * channels});
        x = read_;
      }
      return point_to_pixels(x, count);
    }
    const float* image = run_.x + first / plan_.out_pixels * plan_.rows * plan_.columns * channels;
    int64_t row = first % plan_.out_pixels / g_.out[2];
    int64_t column = first % g_.out[2];
    const int64_t pitch = padded(count);
    for (int64_t i = 0; i < count;) {
      const ConvRange columns{column, std::min(column + count - i, g_.out[2])};
      find_row(image, row, columns, pitch, segments_ + i);
      i += columns.size();
      column = 0;
      if (++row < g_.out[1]) continue;
      row = 0;
      image += plan_.rows * plan_.columns * channels;
    }
    for (int64_t s = 0; s < plan_.segments; ++s) repeat_last(segments_ + s * pitch, count);
  }

  // Those of a part of some rows of an image.
  void find_segments_of_rows(int64_t image, const ConvRange& rows, const ConvRange& columns) {
    const int64_t count = rows.size() * columns.size();
    const int64_t pitch = padded(count);
    const float* const x = run_.x + image * plan_.rows * plan_.columns * g_.in_channels;
    if (plan_.product && plan_.prologue.plan != nullptr) {
      const int64_t pixel = image * plan_.pixels + rows.begin * g_.out[2] + columns.begin;
      const int64_t length = columns.size() * g_.in_channels;
      run_prologue(run_.inputs[0], false, read_,
                   {pixel * g_.in_channels, length, g_.out[2] * g_.in_channels, rows.size()});
      return point_to_pixels(read_, count);
    }
    const float** to = segments_;
    for (int64_t row = rows.begin; row < rows.end; ++row, to += columns.size()) find_row(x, row, columns, pitch, to);
    for (int64_t s = 0; s < plan_.segments; ++s) repeat_last(segments_ + s * pitch, count);
  }

  // Pixels that follow one another.
  void point_to_pixels(const float* x, int64_t count) {
    for (int64_t i = 0; i < count; ++i) segments_[i] = x + i * g_.in_channels;
    repeat_last(segments_, count);
  }

  static void repeat_last(const float** segments, int64_t count) {
    std::fill(segments + count, segments + padded(count), segments[count - 1]);
  }

  // Those of a part of a row, a pixel's `pitch` apart.
  void find_row(const float* image, int64_t row, const ConvRange& columns, int64_t pitch, const float** segments) const {
    const int64_t y = row * g_.strides[1] - plan_.pad_top;
    const bool inside = y >= 0 && y + (g_.kernel[1] - 1) * g_.dilations[1] < plan_.rows;
    const int64_t whole_begin = std::max(columns.begin, divide_up(plan_.pad_left, g_.strides[2]));
    const int64_t room = plan_.columns - 1 - plan_.reach + plan_.pad_left;
    const int64_t whole_end = room < 0 ? 0 : std::min(columns.end, room / g_.strides[2] + 1);
    if (!inside || whole_begin >= whole_end) return find_taps(image, row, columns, pitch, segments);
    find_taps(image, row, {columns.begin, whole_begin}, pitch, segments);
    find_taps(image, row, {whole_end, columns.end}, pitch, segments + (whole_end - columns.begin));
    const int64_t x = whole_begin * g_.strides[2] - plan_.pad_left;
    const float* const from = image + (y * plan_.columns + x) * g_.in_channels;
    const float** to = segments + (whole_begin - columns.begin);
    const int64_t step = g_.strides[2] * g_.in_channels;
    for (const int64_t offset : plan_.offsets) {
      for (int64_t i = 0; i < whole_end - whole_begin; ++i) to[i] = from + offset + i * step;
      to += pitch;
    }
  }

  // The same where taps may be outside of the image: each is a segment then.
  void find_taps(const float* image, int64_t row, const ConvRange& columns, int64_t pitch,
                 const float** segments) const {
    for (int64_t column = columns.begin; column < columns.end; ++column) {
      find_pixel(image, row, column, pitch, segments++);
    }
  }

  void find_pixel(const float* image, int64_t row, int64_t column, int64_t pitch, const float** segments) const {
    const int64_t y = row * g_.strides[1] - plan_.pad_top;
    const int64_t x = column * g_.strides[2] - plan_.pad_left;
    int64_t s = 0;
    for (int64_t h = 0; h < g_.kernel[1]; ++h) {
      const int64_t v = y + h * g_.dilations[1];
      for (int64_t w = 0; w < g_.kernel[2]; ++w, ++s) {
        const int64_t u = x + w * g_.dilations[2];
        const bool meets = v >= 0 && v < plan_.rows && u >= 0 && u < plan_.columns;
        segments[s * pitch] = meets ? image + (v * plan_.columns + u) * g_.in_channels : zeros_;
      }
    }
  }

  // What the prologue makes of runs of elements, one after the other.  `from` is where element 0 of a tensor is, or would be if
  // the runs follow one another there too.
  void run_prologue(const void* from, bool follow, float* to, ElementRuns runs) {
    void* out = whole_tensor(to, runs.first, sizeof(float));
    operands_[0] = from;
    take_prologue_operands();
    move_on(&runs);
    if (!follow) runs.moving = nullptr;
    runs.moving_output = &out;
    run_elements(plan_.prologue.program, plan_.prologue.plan->stages[0], {operands_, &out, nullptr}, runs);
  }

  void take_prologue_operands() {
    const auto operands = run_.inputs.begin() + static_cast<long>(run_.node.first_operand());
    std::copy_n(operands, run_.node.conv.prologue_operands(), operands_ + 1);
  }

  void take_epilogue_operands() {
    const auto operands = run_.inputs.end() - static_cast<long>(run_.node.conv.epilogue_operands());
    std::copy(operands, run_.inputs.end(), operands_ + 1);
  }

  // Makes the first operand one whose runs follow one another.
  void move_on(ElementRuns* runs) const {
    runs->moving = operands_;
    runs->by = (runs->length - runs->step) * static_cast<int64_t>(sizeof(float));
  }

  void compute_channels(int64_t unit) {
    const int64_t image = unit / plan_.pixel_units;
    const auto [rows, columns] = rows_and_columns(unit % plan_.pixel_units, g_);
    TileTarget target{};
    if (plan_.finishes_tiles) {
      const int64_t first = (image * g_.out[1] + rows.begin) * g_.out[2] + columns.begin;
      target = output_target(first, columns.size(), 0);
    }
    for (int64_t column = columns.begin; column < columns.end; column += plan_.tile_columns) {
      compute_rows(image, rows, {column, std::min(column + plan_.tile_columns, columns.end)},
                   {column - columns.begin, columns.size(), plan_.finishes_tiles ? &target : nullptr});
    }
    if (!plan_.finishes_tiles) finish_rows(image, rows, columns, all_filters());
  }

  std::pair<ConvRange, ConvRange> rows_and_columns(int64_t unit, const ConvGeometry& g) const {
    const int64_t row_parts = divide_up(g.out[1], plan_.rows_at_once);
    const int64_t column_parts = divide_up(g.out[2], plan_.columns_at_once);
    const int64_t row_part = plan_.by_columns ? unit % row_parts : unit / column_parts;
    const int64_t column_part = plan_.by_columns ? unit / row_parts : unit % column_parts;
    return {part_of(g.out[1], row_part, plan_.rows_at_once), part_of(g.out[2], column_part, plan_.columns_at_once)};
  }

  // Which pixel of a unit's results the first one is, how far rows are apart, and where they go instead if it is not null.
  struct Place {
    int64_t pixel;
    int64_t pitch;
    const TileTarget* target;
  };

  // All channels of a part of some rows.  What a few channels read of a row stays in the level 1 cache for the rows below.
  // The last of them begin early where there are less than a vector.
  void compute_rows(int64_t image, const ConvRange& rows, const ConvRange& columns, Place place) {
    const int64_t all = plan_.single.in_channels;
    const int64_t latest = std::max<int64_t>(all - static_cast<int64_t>(kMaxFloats), 0);
    for (int64_t first = 0; first < all; first += kNhwcChannelsAtOnce) {
      const ConvRange channels{std::min(first, latest), std::min(first + kNhwcChannelsAtOnce, all)};
      if (plan_.pads_columns) pad_rows(image, rows, columns, channels);
      Place at = place;
      for (int64_t row = rows.begin; row < rows.end; ++row, at.pixel += at.pitch) {
        if (plan_.pads_columns) {
          compute_padded_row(row, rows.begin, columns, channels, at);
        } else {
          compute_row(image, row, columns, channels, at);
        }
      }
    }
  }

  // Copies what some channels of some rows read, with zeros for what lies beside the image.
  void pad_rows(int64_t image, const ConvRange& rows, const ConvRange& columns, const ConvRange& channels) {
    const ConvGeometry& s = plan_.single;
    const int64_t top = rows.begin * s.strides[1] - s.pads[1];
    const int64_t left = columns.begin * s.strides[2] - s.pads[2];
    const int64_t width = extent(s, 2, columns.size());
    const int64_t begin = std::clamp<int64_t>(-left, 0, width);
    const int64_t end = std::clamp<int64_t>(s.in[2] - left, begin, width);
    const int64_t count = channels.size();
    ConvCopy copy{};
    copy.pitch = static_cast<size_t>(count);
    copy.from_pitch = s.in_channels;
    copy.end = run_.x + s.batch * s.in[1] * s.in[2] * s.in_channels;
    copy.stride = 1;
    copy.rows = static_cast<size_t>(end - begin);
    copy.width = static_cast<size_t>(count);
    const int64_t bottom = std::min(top + extent(s, 1, rows.size()), s.in[1]);
    // The zeros are those of the channels before, unless the copy of these wrote whole vectors into them.
    const bool has_zeros = channels.begin > 0 && count == kNhwcChannelsAtOnce;
    for (int64_t y = std::max<int64_t>(top, 0); y < bottom; ++y) {
      float* const to = padded_rows_ + (y - top) * width * count;
      copy.to = to + begin * count;
      copy.from = run_.x + ((image * s.in[1] + y) * s.in[2] + left + begin) * s.in_channels + channels.begin;
      kernels().take_rows(copy);
      if (has_zeros) continue;
      std::fill_n(to, begin * count, 0.0f);
      std::fill(to + end * count, to + width * count, 0.0f);
    }
  }

  // A row of results from that copy, in which every tap of a row meets an element.
  void compute_padded_row(int64_t row, int64_t first_row, const ConvRange& columns, const ConvRange& channels,
                          const Place& place) const {
    const ConvGeometry& s = plan_.single;
    const ConvRange height = taps_inside(s, 1, row);
    const int64_t count = channels.size();
    const int64_t pitch = extent(s, 2, columns.size()) * count;
    NhwcChannels block = channels_block(height, {0, s.kernel[2]}, channels, place);
    const int64_t top = (row - first_row) * s.strides[1] + height.begin * s.dilations[1];
    block.input = static_cast<const float*>(whole_tensor(padded_rows_ + top * pitch, channels.begin, sizeof(float)));
    block.pixel_pitch = s.strides[2] * count;
    block.row_pitch = s.dilations[1] * pitch;
    block.column_pitch = s.dilations[2] * count;
    block.pixels = static_cast<size_t>(columns.size());
    kernels().nhwc_channels(block);
  }

  // Pixels at the left and at the right that some taps miss are computed one by one, those between them together.
  void compute_row(int64_t image, int64_t row, const ConvRange& columns, const ConvRange& range, Place place) const {
    const ConvGeometry& s = plan_.single;
    const ConvRange height = taps_inside(s, 1, row);
    for (int64_t column = columns.begin; column < columns.end;) {
      const ConvRange width = taps_inside(s, 2, column);
      const int64_t last = same_taps_end(s, 2, {column, columns.end});
      const int64_t channels = s.in_channels;
      NhwcChannels block = channels_block(height, width, range, place);
      if (height.size() > 0 && width.size() > 0) {
        const int64_t y = row * s.strides[1] - s.pads[1] + height.begin * s.dilations[1];
        const int64_t x = column * s.strides[2] - s.pads[2] + width.begin * s.dilations[2];
        block.input = run_.x + ((image * s.in[1] + y) * s.in[2] + x) * channels;
      }
      block.pixel_pitch = s.strides[2] * channels;
      block.row_pitch = s.dilations[1] * s.in[2] * channels;
      block.column_pitch = s.dilations[2] * channels;
      block.pixels = static_cast<size_t>(last - column);
      kernels().nhwc_channels(block);
      place.pixel += last - column;
      column = last;
    }
  }

  // Sums of these taps for some channels, but for what they read and the number of pixels.
  NhwcChannels channels_block(const ConvRange& height, const ConvRange& width, const ConvRange& range,
                              const Place& place) const {
    const ConvGeometry& s = plan_.single;
    NhwcChannels block{};
    block.height = static_cast<size_t>(width.size() == 0 ? 0 : height.size());
    block.width = static_cast<size_t>(width.size());
    block.weights = run_.single_weights + (height.begin * s.kernel[2] + width.begin) * s.in_channels;
    block.weight_pitch = static_cast<size_t>(s.kernel[2] * s.in_channels);
    block.addends = run_.single_addends;
    block.out = results_ + place.pixel * s.in_channels;
    block.target = place.target;
    block.target_pixel = static_cast<size_t>(place.pixel);
    block.channels = static_cast<size_t>(s.in_channels);
    block.first = static_cast<size_t>(range.begin);
    block.last = static_cast<size_t>(range.end);
    return block;
  }

  // Whole rows follow one another in the output.
  void finish_rows(int64_t image, const ConvRange& rows, const ConvRange& columns, const ConvRange& filters) {
    const int64_t width = g_.out[2];
    if (columns.size() == width) {
      return finish(image, {rows.begin * width, rows.end * width}, filters, results_);
    }
    if (run_.node.nhwc_output && filters.size() == g_.out_channels) {
      const int64_t begin = (image * plan_.pixels + rows.begin * width + columns.begin) * filters.size();
      return finish_runs(results_, {begin, columns.size() * filters.size(), width * filters.size(), rows.size()});
    }
    const float* results = results_;
    for (int64_t row = rows.begin; row < rows.end; ++row, results += columns.size() * filters.size()) {
      finish(image, {row * width + columns.begin, row * width + columns.end}, filters, results);
    }
  }

  // Runs the epilogue on the `results` of some filters for pixels that follow one another.
  void finish(int64_t image, const ConvRange& pixels, const ConvRange& filters, const float* results) {
    const int64_t all = g_.out_channels;
    const int64_t count = pixels.size();
    if (!run_.node.nhwc_output) {
      kernels().transpose_rows(turned_, static_cast<size_t>(count), results, static_cast<size_t>(filters.size()),
                               static_cast<size_t>(count), static_cast<size_t>(filters.size()));
      const int64_t begin = (image * all + filters.begin) * plan_.out_pixels + pixels.begin;
      return finish_runs(turned_, {begin, count, plan_.out_pixels, filters.size()});
    }
    // Pixels may be those of all images.
    const int64_t begin = (image * plan_.pixels + pixels.begin) * all + filters.begin;
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
  float* const read_;
  const float** const segments_;
  float* const zeros_;
  float* const padded_rows_;
  const void** const operands_;
  ChainLink links_[kMaxChainLinks];
};

// No exception may get to ORT's threads.
void compute_unit(void* data, size_t unit) noexcept {
  Run& run = *static_cast<Run*>(data);
  try {
    Worker(run).compute(static_cast<int64_t>(unit));
  } catch (...) {
    run.failed = true;
  }
}

// Some pixels of an image of X with the channels last.
void copy_pixels(void* data, size_t unit) {
  const Run& run = *static_cast<const Run*>(data);
  const NhwcConvPlan& plan = run.plan;
  const int64_t units = divide_up(plan.in_pixels, kCopiedPixels);
  const int64_t image = static_cast<int64_t>(unit) / units;
  const int64_t first = static_cast<int64_t>(unit) % units * kCopiedPixels;
  const auto count = static_cast<size_t>(std::min(kCopiedPixels, plan.in_pixels - first));
  const int64_t channels = plan.geometry.in_channels;
  kernels().transpose_rows(run.copy + (image * plan.in_pixels + first) * channels, static_cast<size_t>(channels),
                           run.x + image * channels * plan.in_pixels + first, static_cast<size_t>(plan.in_pixels),
                           static_cast<size_t>(channels), count);
}

// A row of an image of X with the channels last and the padding.
void copy_row(void* data, size_t unit) {
  const Run& run = *static_cast<const Run*>(data);
  const NhwcConvPlan& plan = run.plan;
  const ConvGeometry& g = plan.geometry;
  const int64_t channels = g.in_channels;
  const int64_t image = static_cast<int64_t>(unit) / plan.rows;
  const int64_t row = static_cast<int64_t>(unit) % plan.rows - g.pads[1];
  float* const to = run.copy + static_cast<int64_t>(unit) * plan.columns * channels;
  const int64_t left = std::min(g.pads[2], plan.columns);
  const int64_t inside = row < 0 || row >= g.in[1] ? 0 : std::clamp<int64_t>(plan.columns - left, 0, g.in[2]);
  std::fill_n(to, left * channels, 0.0f);
  std::fill(to + (left + inside) * channels, to + plan.columns * channels, 0.0f);
  if (inside == 0) return;
  float* const first = to + left * channels;
  if (run.node.nhwc[0]) {
    std::copy_n(run.x + (image * g.in[1] + row) * g.in[2] * channels, inside * channels, first);
  } else {
    const float* const from = run.x + image * channels * plan.in_pixels + row * g.in[2];
    kernels().transpose_rows(first, static_cast<size_t>(channels), from, static_cast<size_t>(plan.in_pixels),
                             static_cast<size_t>(channels), static_cast<size_t>(inside));
  }
}

// The copy of X that is read; no memory if there is none.
RunMemory copy_input(Run* run, const Host& host) {
  const NhwcConvPlan& plan = run->plan;
  if (!plan.copies) return {};
  const ConvGeometry& g = plan.geometry;
  RunMemory memory(host, static_cast<size_t>(g.batch * plan.rows * plan.columns * g.in_channels) * sizeof(float));
  run->copy = static_cast<float*>(memory.data());
  const int64_t units = g.batch * (plan.padded ? plan.rows : divide_up(plan.in_pixels, kCopiedPixels));
  const auto function = plan.padded ? copy_row : copy_pixels;
  if (plan.alone) {
    for (int64_t unit = 0; unit < units; ++unit) function(run, static_cast<size_t>(unit));
  } else {
    host.parallel_for(function, units, run);
  }
  run->x = run->copy;
  return memory;
}

// The bias of a Program, whose operands are inputs from `first` on, with zeros behind it; or zeros.
Workspace copy_addends(const Run& run, const ConvEpilogue& program, size_t first, int64_t filters,
                       const float** addends) {
  const int64_t whole = round_up(filters, static_cast<int64_t>(kMaxFloats));
  Workspace memory(static_cast<size_t>(whole) * sizeof(float));
  auto* const to = static_cast<float*>(memory.data());
  const size_t bias = program.plan == nullptr ? 0 : program.bias;
  if (bias != 0) std::copy_n(static_cast<const float*>(run.inputs[first + bias - 1]), filters, to);
  std::fill(to + (bias != 0 ? filters : 0), to + whole, 0.0f);
  *addends = to;
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
  const Workspace addends = copy_addends(run, plan.epilogue, second, g.out_channels, &run.addends);
  run.single_addends = run.addends;
  run.single_weights = static_cast<const float*>(inputs[1]);
  std::optional<Workspace> single_addends;
  if (node.has_depthwise) {
    run.single_weights = static_cast<const float*>(inputs[2]);
    single_addends.emplace(copy_addends(run, plan.prologue, 3, g.in_channels, &run.single_addends));
  }
  const RunMemory copy = copy_input(&run, host);
  const int64_t units = plan.images * plan.pixel_units * plan.filter_units;
  if (units == 1 || plan.alone) {
    for (int64_t unit = 0; unit < units; ++unit) compute_unit(&run, static_cast<size_t>(unit));
  } else {
    host.parallel_for(compute_unit, units, &run);
  }
  if (run.failed) throw Error("out of memory for a thread's part of the convolution", ORT_FAIL);
  if (plan.whole_epilogue == nullptr) return;
  results->run(node.epilogue, sums[0], {inputs.begin() + static_cast<long>(second), inputs.end()}, outputs.data());
}

}  // namespace onnxfuse
