#include "nodes/conv/conv_cpu.h"

#include <algorithm>
#include <cstring>

#include "kernels/kernels.h"
#include "platform/cache_lines.h"
#include "platform/caches.h"
#include "platform/denormals.h"
#include "platform/integers.h"
#include "runtime/parts.h"
#include "runtime/workspace.h"

namespace onnxfuse {
namespace {

// Elements that strips may have in memory together.
constexpr size_t kMostCopied = size_t{1} << 24;
// Channels of a strip that a thread computes the prologue of at once.
constexpr int64_t kCopiedChannels = 64;
// Elements of 16 bits to widen at once.
constexpr size_t kWidened = 16384;
// Fewer weights are not worth the hand-over to threads.
constexpr size_t kSmall = 16384;

struct Run {
  float* copy_of(int64_t image, int64_t group, int64_t strip) const {
    const int64_t number = (image * plan.geometry.group + group) * plan.strip_count + strip;
    return copies + number * static_cast<int64_t>(plan.strips->input_elements());
  }

  const ConvCpuPlan& plan;
  const ConvTensors& tensors;
  const float* x = nullptr;
  const float* end = nullptr;  // of x
  const float* weights = nullptr;
  float* copies = nullptr;  // of all strips, if several units read each
};

// What a strip reads of some channels of a group, or what the prologue makes of it.
ConvStrips::Source read_strip(const Run& run, int64_t image, int64_t group, const ConvStrips::Strip& strip,
                              const ConvRange& channels, float* memory) {
  const ConvStrips& strips = *run.plan.strips;
  const ConvGeometry& g = run.plan.geometry;
  const int64_t begin = (image * g.in_channels + group * g.channels()) * conv_elements(g.in);
  if (run.plan.prologue == nullptr) return strips.prepare(run.x + begin, run.end, strip, memory);
  struct Prologue {
    const Run& run;
    int64_t begin;
  } prologue{run, begin};
  const auto read = [](void* data, const ConvRange& read_channels, int64_t first, int64_t count, float* to,
                       int64_t pitch) {
    const auto& [own, group_begin] = *static_cast<const Prologue*>(data);
    const int64_t size = conv_elements(own.plan.geometry.in);
    const int64_t from = group_begin + read_channels.begin * size + first;
    void* out = whole_tensor(to, from, sizeof(float));
    ElementRuns runs{from, count, size, read_channels.size()};
    if (count == size && pitch == size) {
      runs = {from, count * read_channels.size()};
    } else {
      runs.moving_output = &out;
      runs.by = (pitch - size) * static_cast<int64_t>(sizeof(float));
    }
    run_elements(*own.plan.prologue, own.plan.prologue_plan->stages[0], {own.tensors.prologue, &out, nullptr}, runs);
  };
  return strips.prepare(ConvStrips::Reader{&prologue, read}, strip, channels, memory);
}

// What a thread computes units in.
class Worker {
 public:
  explicit Worker(const Run& run)
      : run_(run),
        plan_(run.plan),
        strips_(run.plan.strips.get()),
        memory_(plan_.memory.bytes),
        input_(at<float>(0)),
        results_(at<float>(plan_.memory.results)),
        rounded_(at<char>(plan_.memory.rounded)),
        scratch_(at<float>(plan_.memory.scratch)),
        planes_(at<ConvStrips::Plane>(plan_.memory.planes)),
        parts_(at<ConvStrips::Part>(plan_.memory.parts)),
        operands_(at<const void*>(plan_.memory.operands)) {
    std::copy_n(run.tensors.epilogue, plan_.epilogue.program.input_count, operands_);
  }

  void compute(int64_t unit) {
    switch (plan_.way) {
      case ConvWay::Rows:
        return compute_rows(unit);
      case ConvWay::Lanes:
        return compute_lanes(unit);
      case ConvWay::Strips:
        return compute_strip(unit);
    }
  }

 private:
  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(memory_.data()) + offset);
  }

  // A strip of some channels.
  void compute_rows(int64_t unit) {
    const ConvGeometry& g = plan_.geometry;
    const ConvRows& rows = *plan_.rows;
    const int64_t strip = unit % plan_.strip_count;
    unit /= plan_.strip_count;
    const int64_t first = unit % plan_.group_units * plan_.groups_at_once;
    const int64_t last = std::min(first + plan_.groups_at_once, g.group);
    image_ = unit / plan_.group_units;
    const ConvPositions part{{0, 1}, rows.strip(strip), {0, g.out[2]}};
    for (first_ = first; first_ < last; first_ += rows.channels_at_once()) {
      count_ = std::min(rows.channels_at_once(), last - first_);
      rows.compute(run_.x + (image_ * g.group + first_) * conv_elements(g.in), run_.weights + first_ * g.products(),
                   bias() == nullptr ? nullptr : bias() + first_, count_, strip, results_, target(first_));
      finish_summed(part, part.size());
    }
  }

  // A strip of as many channels as there are lanes.
  void compute_lanes(int64_t unit) {
    const ConvGeometry& g = plan_.geometry;
    const ConvLanes& lanes = *plan_.lanes;
    const int64_t strip = unit % plan_.strip_count;
    unit /= plan_.strip_count;
    first_ = unit % plan_.group_units * lanes.lanes();
    image_ = unit / plan_.group_units;
    count_ = std::min(lanes.lanes(), g.group - first_);
    const int64_t taps = g.products();
    lanes.compute(run_.x + (image_ * g.group + first_) * conv_elements(g.in), run_.end, run_.weights + first_ * taps,
                  run_.weights + g.group * taps, count_, strip, input_, results_);
    const ConvRange rows = lanes.strip(strip);
    finish({{0, 1}, rows, {0, g.out[2]}}, rows.size() * g.out[2]);
  }

  // Some output channels of one strip, for some groups.
  void compute_strip(int64_t unit) {
    const ConvGeometry& g = plan_.geometry;
    const int64_t first_filter = unit % plan_.filter_units * plan_.filters_at_once;
    const int64_t last_filter = std::min(first_filter + plan_.filters_at_once, g.filters());
    unit /= plan_.filter_units;
    enter_strip(unit % plan_.strip_count);
    unit /= plan_.strip_count;
    const int64_t first_group = unit % plan_.group_units * plan_.groups_at_once;
    const int64_t last_group = std::min(first_group + plan_.groups_at_once, g.group);
    image_ = unit / plan_.group_units;
    for (int64_t group = first_group; group < last_group; ++group) {
      compute_filters(read(group), group, first_filter, last_filter);
    }
    if (count_ > 0) finish(parts_[0].positions, strips_->pitch(parts_[0]));
  }

  void enter_strip(int64_t index) {
    if (index == strip_index_) return;
    strip_index_ = index;
    strip_ = strips_->strip(index, planes_);
    part_count_ = strips_->parts(strip_, parts_);
  }

  ConvStrips::Source read(int64_t group) {
    if (run_.copies != nullptr) return {run_.copy_of(image_, group, strip_index_)};
    return read_strip(run_, image_, group, strip_, {0, plan_.geometry.channels()}, input_);
  }

  void compute_filters(ConvStrips::Source source, int64_t group, int64_t first, int64_t last) {
    const ConvGeometry& g = plan_.geometry;
    const float* const weights = run_.weights + group * g.filters() * g.products();
    const float* const all = strips_->takes_addends() ? bias() : nullptr;
    const float* const addends = all == nullptr ? nullptr : all + group * g.filters();
    for (int64_t m = first; m < last; m += strips_->filters_at_once()) {
      const int64_t count = std::min(strips_->filters_at_once(), last - m);
      for (size_t p = 0; p < part_count_; ++p) {
        const ConvStrips::Part& part = parts_[p];
        const int64_t pitch = strips_->pitch(part);
        if (count_ + count > plan_.capacity) finish(part.positions, pitch);
        if (count_ == 0) first_ = group * g.filters() + m;
        strips_->sum(source, weights, addends, m, count, part, results_ + count_ * pitch,
                     target(part.positions, group * g.filters() + m), scratch_);
        count_ += count;
        if (!plan_.collects) finish(part.positions, pitch);
      }
      source.far = false;  // the next filters find it in a cache
    }
  }

  // Runs the epilogue on the results of `count_` channels from `first_` on.
  void finish(const ConvPositions& part, int64_t pitch) {
    add_bias(part, pitch);
    finish_summed(part, pitch);
  }

  // The same where the bias has been added.
  void finish_summed(const ConvPositions& part, int64_t pitch) {
    const char* const results = round_results(pitch);
    const int64_t begin = (image_ * plan_.geometry.out_channels + first_) * plan_.channel_size;
    const bool follow = pitch == plan_.channel_size && part.size() == pitch;
    // Rows follow one another in the output if they are whole.
    const bool whole = part.columns.size() == plan_.geometry.out[2] || part.rows.size() == 1;
    if (follow) {
      finish_runs(results, {begin, count_ * pitch}, 0);
    } else if (whole && part.depth.size() == 1) {
      const int64_t first = begin + first_element(part, part.depth.begin);
      finish_runs(results, {first, part.size(), plan_.channel_size, count_}, pitch);
    } else {
      const int64_t bytes = pitch * element_bytes();
      for (int64_t m = 0; m < count_; ++m) finish_channel(part, results + m * bytes, begin + m * plan_.channel_size);
    }
    count_ = 0;
  }

  // Of all channels; null if there is none.
  const float* bias() const {
    if (plan_.epilogue.plan == nullptr || plan_.epilogue.bias == 0) return nullptr;
    return static_cast<const float*>(operands_[plan_.epilogue.bias]);
  }

  void add_bias(const ConvPositions& part, int64_t pitch) {
    const float* const addends = strips_ != nullptr && strips_->takes_addends() ? nullptr : bias();
    if (addends == nullptr) return;
    const int64_t size = pitch == plan_.channel_size ? pitch : part.size();
    kernels().add_to_rows(results_, static_cast<size_t>(pitch), addends + first_, static_cast<size_t>(count_),
                          static_cast<size_t>(size));
  }

  // The results in the type that the epilogue reads.
  const char* round_results(int64_t pitch) {
    if (plan_.type == DType::f32) return reinterpret_cast<const char*>(results_);
    const void* const from = results_;
    kernels().stores[static_cast<int>(plan_.type)](rounded_, &from, static_cast<size_t>(count_ * pitch));
    return rounded_;
  }

  // Where a channel goes, if that is fetched; else null.
  const float* target(int64_t channel) const {
    if (!plan_.fetches) return nullptr;
    return static_cast<const float*>(run_.tensors.outputs[0]) +
           (image_ * plan_.geometry.out_channels + channel) * plan_.channel_size;
  }

  // The same for a part of it.
  ConvStrips::Target target(const ConvPositions& part, int64_t channel) const {
    if (!plan_.fetches) return {};
    return {target(channel) + first_element(part, part.depth.begin), static_cast<size_t>(plan_.channel_size),
            static_cast<size_t>(plan_.geometry.out[2])};
  }

  // Of a channel of the output: where a part begins at a depth.
  int64_t first_element(const ConvPositions& part, int64_t depth) const {
    const ConvGeometry& g = plan_.geometry;
    return (depth * g.out[1] + part.rows.begin) * g.out[2] + part.columns.begin;
  }

  // A part of one channel, which begins at element `begin` of the output.
  void finish_channel(const ConvPositions& part, const char* results, int64_t begin) {
    const int64_t columns = part.columns.size();
    for (int64_t d = part.depth.begin; d < part.depth.end; ++d) {
      const int64_t first = begin + first_element(part, d);
      finish_runs(results, {first, columns, plan_.geometry.out[2], part.rows.size()}, columns);
      results += part.rows.size() * columns * element_bytes();
    }
  }

  // Runs of elements of the output, whose results are `pitch` elements apart.
  void finish_runs(const char* results, ElementRuns runs, int64_t pitch) {
    const int64_t bytes = element_bytes();
    void* const* const outputs = run_.tensors.outputs;
    if (plan_.epilogue.plan == nullptr) {
      char* to = static_cast<char*>(outputs[0]) + runs.first * bytes;
      for (int64_t i = 0; i < runs.count; ++i, to += runs.step * bytes, results += pitch * bytes) {
        std::memcpy(to, results, static_cast<size_t>(runs.length * bytes));
      }
      return;
    }
    operands_[0] = whole_tensor(results, runs.first, static_cast<size_t>(bytes));
    runs.moving = operands_;
    runs.by = (pitch - runs.step) * bytes;
    run_elements(plan_.epilogue.program, plan_.epilogue.plan->stages[0], {operands_, outputs, nullptr}, runs);
  }

  int64_t element_bytes() const { return static_cast<int64_t>(storage_size(plan_.type)); }

  const Run& run_;
  const ConvCpuPlan& plan_;
  const ConvStrips* const strips_;  // null where there are rows or lanes
  const Workspace memory_;
  float* const input_;
  float* const results_;
  char* const rounded_;
  float* const scratch_;
  ConvStrips::Plane* const planes_;
  ConvStrips::Part* const parts_;
  const void** const operands_;  // of the epilogue, the results first
  int64_t strip_index_ = -1;
  ConvStrips::Strip strip_{};
  size_t part_count_ = 0;
  int64_t image_ = 0;
  int64_t first_ = 0;       // channel of the results in memory
  int64_t count_ = 0;       // of them
};

// Into how many parts the channels of a strip are divided where it is copied.
int64_t copied_parts(const ConvCpuPlan& plan) {
  return plan.prologue == nullptr ? 1 : divide_up(plan.geometry.channels(), kCopiedChannels);
}

// Copies a part of what one strip reads.
void copy_strip(const Run& run, int64_t number) {
  const ConvStrips& strips = *run.plan.strips;
  const ConvGeometry& g = run.plan.geometry;
  const int64_t parts = copied_parts(run.plan);
  const int64_t strip = number / parts % run.plan.strip_count;
  const int64_t group = number / parts / run.plan.strip_count % g.group;
  const int64_t image = number / parts / run.plan.strip_count / g.group;
  const int64_t first = number % parts * kCopiedChannels;
  const ConvRange channels{first, parts == 1 ? g.channels() : std::min(first + kCopiedChannels, g.channels())};
  const Workspace planes(strips.plane_count() * sizeof(ConvStrips::Plane));
  read_strip(run, image, group, strips.strip(strip, static_cast<ConvStrips::Plane*>(planes.data())), channels,
             run.copy_of(image, group, strip));
}

// The copies of all strips, if several units read each.
RunMemory copy_strips(Run* run, const Host& host) {
  const ConvCpuPlan& plan = run->plan;
  if (plan.filter_units == 1 || !plan.strips->copies(plan.prologue != nullptr)) return {};
  const auto count = static_cast<size_t>(plan.geometry.batch * plan.geometry.group * plan.strip_count);
  const size_t of_strip = plan.strips->input_elements();
  if (of_strip > kMostCopied / count) return {};
  RunMemory memory(host, count * of_strip * sizeof(float));
  run->copies = static_cast<float*>(memory.data());
  const size_t jobs = count * static_cast<size_t>(copied_parts(plan));
  run_parts(host, static_cast<int64_t>(jobs), [&](int64_t number) { copy_strip(*run, number); });
  return memory;
}

// `count` elements of `type` as float; no memory if they are.
RunMemory widen(DType type, const void* from, int64_t count, const Host& host) {
  if (type == DType::f32) return {};
  const auto size = static_cast<size_t>(count);
  RunMemory memory(host, size * sizeof(float));
  const Kernel load = kernels().loads[static_cast<int>(type)];
  run_parts(host, static_cast<int64_t>(divide_up(size, kWidened)), [&](int64_t part) {
    const size_t first = static_cast<size_t>(part) * kWidened;
    const void* const narrow = static_cast<const char*>(from) + first * sizeof(uint16_t);
    load(static_cast<float*>(memory.data()) + first, &narrow, std::min(kWidened, size - first));
  });
  return memory;
}

// The weights in the order that the strips read; no memory if they are.
RunMemory reorder(const ConvCpuPlan& plan, const float* weights, const Host& host) {
  const int64_t blocks = plan.way != ConvWay::Strips ? 0 : plan.strips->weight_blocks() * plan.geometry.group;
  if (blocks == 0) return {};
  const auto count = static_cast<size_t>(plan.geometry.out_channels * plan.geometry.products());
  RunMemory memory(host, count * sizeof(float));
  const auto reorder_block = [&](int64_t block) {
    plan.strips->reorder_weights(weights, block, static_cast<float*>(memory.data()));
  };
  run_parts(host, blocks, reorder_block, count < kSmall);
  return memory;
}

}  // namespace

void run_conv_cpu(const ConvCpuPlan& plan, const ConvTensors& tensors, const Host& host) {
  const ConvGeometry& g = plan.geometry;
  const int64_t image = g.batch * g.in_channels * conv_elements(g.in);
  const int64_t filters = g.out_channels * g.products();
  const RunMemory wide_x = widen(plan.type, tensors.x, image, host);
  const RunMemory wide_weights = widen(plan.type, tensors.weights, filters, host);
  Run run{plan, tensors};
  run.x = static_cast<const float*>(wide_x.data() != nullptr ? wide_x.data() : tensors.x);
  run.end = run.x + image;
  run.weights = static_cast<const float*>(wide_weights.data() != nullptr ? wide_weights.data() : tensors.weights);
  const RunMemory ordered = reorder(plan, run.weights, host);
  if (ordered.data() != nullptr) run.weights = static_cast<const float*>(ordered.data());
  const RunMemory copies = copy_strips(&run, host);
  // ORT gives each thread a share of units that follow one another, the same share in every node, so that a thread finds in
  // its core's caches what it has computed of a tensor before.
  const auto compute = [&](int64_t unit) {
    const DenormalsAsZeros zeros(!tensors.denormals);
    Worker(run).compute(unit);
  };
  run_parts(host, plan.units, compute, plan.alone);
}

}  // namespace onnxfuse
