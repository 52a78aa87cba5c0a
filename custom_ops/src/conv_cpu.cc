#include "conv_cpu.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>

#include "kernels.h"
#include "ort_call.h"
#include "workspace.h"

namespace onnxfuse {
namespace {

// Results of small images that are computed before the epilogue reads them.
constexpr int64_t kCollected = 4096;
// A unit of work with fewer products is not worth the hand-over to a thread.
constexpr double kUnitProducts = 200e3;
// Filters are divided among units if there are fewer of these, and each has enough to do.
constexpr int64_t kUnits = 16;
constexpr int64_t kUnitFilters = 32;
constexpr double kSplitProducts = 400e3;
// What a result costs besides its products, in products.
constexpr int64_t kResultProducts = 8;
// Elements that strips may have in memory together.
constexpr size_t kMostCopied = size_t{1} << 24;
// Threads that can work at once, at most.
constexpr int64_t kMaxThreads = 128;
// Elements of 16 bits to widen at once.
constexpr size_t kWidened = 16384;
// Fewer weights are not worth the hand-over to threads.
constexpr size_t kSmall = 16384;

int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

// None if a size is 0, however large the others are.
int64_t elements(const ConvGeometry::Sizes& sizes) {
  return *std::min_element(sizes.begin(), sizes.end()) == 0 ? 0 : sizes[0] * sizes[1] * sizes[2];
}

// Where elements lie of which only some are in memory: Programs look for those where they are in the whole tensor.
void* at_element(void* memory, int64_t element, int64_t bytes) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(memory) + static_cast<uintptr_t>(element * bytes));
}

struct Run {
  Run(const ConvCpuPlan& run_plan, const ConvTensors& run_tensors) : plan(run_plan), tensors(run_tensors) {
    const ConvGeometry& g = plan.geometry;
    group_units = divide_up(g.group, plan.groups_at_once);
    filter_units = divide_up(plan.strips.filters(), plan.filters_at_once);
    units = g.batch * group_units * (plan.lanes != nullptr ? plan.lanes->strips() : plan.strips.count() * filter_units);
  }

  float* copy_of(int64_t image, int64_t group, int64_t strip) const {
    const int64_t number = (image * plan.geometry.group + group) * plan.strips.count() + strip;
    return copies + number * static_cast<int64_t>(plan.strips.input_elements());
  }

  const ConvCpuPlan& plan;
  const float* x = nullptr;
  const float* end = nullptr;  // of x
  const float* weights = nullptr;
  const ConvTensors& tensors;
  float* copies = nullptr;  // of all strips, if several units read each
  int64_t group_units;
  int64_t filter_units;
  int64_t units;
  std::atomic<int64_t> next{0};  // unit
  std::atomic<bool> failed{false};
};

// What a thread computes units in.
class Worker {
 public:
  explicit Worker(const Run& run)
      : run_(run),
        plan_(run.plan),
        strips_(run.plan.strips),
        plane_(elements(run.plan.geometry.out)),
        collects_(strips_.count() == 1 && strips_.part_size() == plane_ && strips_.follow_one_another(strips_.parts(strips_.strip(0))[0])),
        capacity_(std::max(strips_.filters_at_once(), collects_ ? kCollected / plane_ : 0)),
        memory_((input_elements() + (rounds() ? 2 : 1) * results_elements() + strips_.scratch_elements()) * sizeof(float)),
        input_(static_cast<float*>(memory_.data())),
        results_(input_ + input_elements()),
        rounded_(results_ + results_elements()),
        scratch_(rounds() ? rounded_ + results_elements() : rounded_),
        inputs_(run.tensors.epilogue) {}

  void compute(int64_t index) { plan_.lanes == nullptr ? compute_strip(index) : compute_lanes(index); }

 private:
  bool rounds() const { return plan_.type != DType::f32; }

  size_t results_elements() const {
    const int64_t pitch = std::max(strips_.results_pitch(), strips_.part_size());
    const auto own = static_cast<size_t>((capacity_ + strips_.filters_at_once()) * pitch) + 2 * kMaxFloats;
    return plan_.lanes == nullptr ? own : plan_.lanes->result_elements();
  }

  size_t input_elements() const {
    return plan_.lanes == nullptr ? strips_.input_elements() : plan_.lanes->memory_elements();
  }

  // A strip of as many channels as there are lanes.
  void compute_lanes(int64_t index) {
    const ConvGeometry& g = plan_.geometry;
    const ConvLanes& lanes = *plan_.lanes;
    const int64_t strip = index % lanes.strips();
    index /= lanes.strips();
    first_ = index % run_.group_units * lanes.lanes();
    image_ = index / run_.group_units;
    count_ = std::min(lanes.lanes(), g.group - first_);
    const int64_t taps = strips_.products();
    lanes.compute(run_.x + (image_ * g.group + first_) * elements(g.in), run_.end, run_.weights + first_ * taps,
                  run_.weights + g.group * taps, count_, strip, input_, results_);
    const ConvRange rows = lanes.strip(strip);
    finish({{0, 1}, rows, {0, g.out[2]}}, rows.size() * g.out[2]);
  }

  // Some output channels of one strip, for some groups.
  void compute_strip(int64_t index) {
    const ConvGeometry& g = plan_.geometry;
    const int64_t first_filter = index % run_.filter_units * plan_.filters_at_once;
    const int64_t last_filter = std::min(first_filter + plan_.filters_at_once, strips_.filters());
    index /= run_.filter_units;
    if (const int64_t strip = index % strips_.count(); strip != strip_index_) {
      strip_index_ = strip;
      strip_ = strips_.strip(strip);
      parts_ = strips_.parts(strip_);
    }
    index /= strips_.count();
    const int64_t first_group = index % run_.group_units * plan_.groups_at_once;
    image_ = index / run_.group_units;
    for (int64_t group = first_group; group < std::min(first_group + plan_.groups_at_once, g.group); ++group) {
      first_read_ = (image_ * g.in_channels + group * strips_.channels()) * elements(g.in);
      compute_filters(read(group), group, first_filter, last_filter);
    }
    if (count_ > 0) finish(parts_[0].positions, strips_.pitch(parts_[0]));
  }

  ConvStrips::Source read(int64_t group) {
    if (run_.copies != nullptr) return {run_.copy_of(image_, group, strip_index_), false};
    if (plan_.prologue == nullptr) return strips_.prepare(run_.x + first_read_, run_.end, strip_, input_);
    return strips_.prepare(ConvStrips::Reader{this, run_prologue}, strip_, input_);
  }

  static void run_prologue(void* data, int64_t channel, int64_t first, int64_t count, float* to) {
    const auto& worker = *static_cast<const Worker*>(data);
    const ConvCpuPlan& plan = worker.plan_;
    const int64_t begin = worker.first_read_ + channel * elements(plan.geometry.in) + first;
    void* const out = at_element(to, -begin, sizeof(float));
    run_elements(*plan.prologue, plan.prologue_plan->stages[0], {worker.run_.tensors.prologue.data(), &out, nullptr},
                 begin, begin + count);
  }

  void compute_filters(const ConvStrips::Source& source, int64_t group, int64_t first, int64_t last) {
    const float* const weights = run_.weights + group * strips_.filters() * strips_.products();
    for (int64_t m = first; m < last; m += strips_.filters_at_once()) {
      const int64_t count = std::min(strips_.filters_at_once(), last - m);
      for (const ConvStrips::Part& part : parts_) {
        if (count_ + count > capacity_) finish(part.positions, strips_.pitch(part));
        if (count_ == 0) first_ = group * strips_.filters() + m;
        strips_.sum(source, weights, m, count, part, results_ + count_ * strips_.pitch(part), scratch_);
        count_ += count;
        if (!collects_) finish(part.positions, strips_.pitch(part));
      }
    }
  }

  // Runs the epilogue on the results of `count_` channels from `first_` on.
  void finish(const ConvPositions& part, int64_t pitch) {
    const ConvGeometry& g = plan_.geometry;
    const char* results = reinterpret_cast<const char*>(results_);
    if (plan_.epilogue.plan != nullptr && plan_.epilogue.bias > 0) {
      const auto* const bias = static_cast<const float*>(inputs_[plan_.epilogue.bias]);
      const auto elements_of_part = static_cast<size_t>(pitch == plane_ ? plane_ : part.size());
      kernels().add_to_rows(results_, static_cast<size_t>(pitch), bias + first_, static_cast<size_t>(count_),
                            elements_of_part);
    }
    if (rounds()) {
      const void* const from = results_;
      kernels().stores[static_cast<int>(plan_.type)](rounded_, &from, static_cast<size_t>(count_ * pitch));
      results = reinterpret_cast<const char*>(rounded_);
    }
    const auto bytes = static_cast<int64_t>(storage_size(plan_.type));
    const int64_t begin = (image_ * g.out_channels + first_) * plane_;
    if (pitch == plane_ && part.size() == plane_) {
      finish_run(results, begin, count_ * plane_);
      count_ = 0;
      return;
    }
    // Rows follow one another in the output if they are whole.
    const bool whole = part.columns.size() == g.out[2] || part.rows.size() == 1;
    const int64_t rows = whole ? part.rows.size() : 1;
    for (int64_t m = 0; m < count_; ++m) {
      const char* from = results + m * pitch * bytes;
      for (int64_t d = part.depth.begin; d < part.depth.end; ++d) {
        for (int64_t h = part.rows.begin; h < part.rows.end; h += rows, from += rows * part.columns.size() * bytes) {
          finish_run(from, begin + m * plane_ + (d * g.out[1] + h) * g.out[2] + part.columns.begin, rows * part.columns.size());
        }
      }
    }
    count_ = 0;
  }

  // The results of `count` elements of the output from `begin` on.
  void finish_run(const char* results, int64_t begin, int64_t count) {
    const auto bytes = static_cast<int64_t>(storage_size(plan_.type));
    if (plan_.epilogue.plan == nullptr) {
      std::memcpy(static_cast<char*>(run_.tensors.outputs[0]) + begin * bytes, results, static_cast<size_t>(count * bytes));
      return;
    }
    inputs_[0] = at_element(const_cast<char*>(results), -begin, bytes);
    run_elements(plan_.epilogue.program, plan_.epilogue.plan->stages[0], {inputs_.data(), run_.tensors.outputs.data(), nullptr}, begin,
                 begin + count);
  }

  const Run& run_;
  const ConvCpuPlan& plan_;
  const ConvStrips& strips_;
  const int64_t plane_;     // elements of the output's channel
  const bool collects_;     // results of consecutive channels follow one another in the output
  const int64_t capacity_;  // channels
  const Workspace memory_;
  float* const input_;
  float* const results_;
  float* const rounded_;
  float* const scratch_;
  std::vector<const void*> inputs_;
  int64_t strip_index_ = -1;
  ConvStrips::Strip strip_;
  std::vector<ConvStrips::Part> parts_;
  int64_t image_ = 0;
  int64_t first_read_ = 0;  // element of X that the group begins with
  int64_t first_ = 0;
  int64_t count_ = 0;
};

// Units until there are none.  No exception may get to ORT's threads.
void compute_units(void* data, size_t) noexcept {
  Run& run = *static_cast<Run*>(data);
  try {
    int64_t unit = run.next++;
    if (unit >= run.units) return;
    Worker worker(run);
    for (; unit < run.units; unit = run.next++) worker.compute(unit);
  } catch (...) {
    run.failed = true;
  }
}

// Copies what one strip reads.
void copy_strip(void* data, size_t index) noexcept {
  const Run& run = *static_cast<const Run*>(data);
  const ConvGeometry& g = run.plan.geometry;
  const ConvStrips& strips = run.plan.strips;
  try {
    const auto number = static_cast<int64_t>(index);
    const int64_t strip = number % strips.count();
    const int64_t group = number / strips.count() % g.group;
    const int64_t image = number / strips.count() / g.group;
    const float* const x = run.x + (image * g.in_channels + group * strips.channels()) * elements(g.in);
    strips.prepare(x, run.end, strips.strip(strip), run.copy_of(image, group, strip));
  } catch (...) {
    static_cast<Run*>(data)->failed = true;
  }
}

// The copies of all strips, if several units read each.
std::unique_ptr<Workspace> copy_strips(Run* run, ParallelFor parallel_for, void* context) {
  const ConvStrips& strips = run->plan.strips;
  if (run->filter_units == 1 || !strips.copies()) return nullptr;
  const auto count = static_cast<size_t>(run->plan.geometry.batch * run->plan.geometry.group * strips.count());
  if (strips.input_elements() > kMostCopied / count) return nullptr;
  auto memory = std::make_unique<Workspace>(count * strips.input_elements() * sizeof(float));
  run->copies = static_cast<float*>(memory->data());
  if (count == 1) {
    copy_strip(run, 0);
  } else {
    parallel_for(context, copy_strip, count, run);
  }
  return memory;
}

struct Widening {
  Kernel load;
  const char* from;
  float* to;
  size_t count;
};

void widen_part(void* data, size_t index) {
  const auto& widening = *static_cast<const Widening*>(data);
  const size_t first = index * kWidened;
  const void* const from = widening.from + first * sizeof(uint16_t);
  widening.load(widening.to + first, &from, std::min(kWidened, widening.count - first));
}

// `count` elements of `type` as float; null if they are.
std::unique_ptr<Workspace> widen(DType type, const void* from, int64_t count, ParallelFor parallel_for, void* context) {
  if (type == DType::f32) return nullptr;
  const auto size = static_cast<size_t>(count);
  auto memory = std::make_unique<Workspace>(size * sizeof(float));
  Widening widening{kernels().loads[static_cast<int>(type)], static_cast<const char*>(from),
                    static_cast<float*>(memory->data()), size};
  parallel_for(context, widen_part, (size + kWidened - 1) / kWidened, &widening);
  return memory;
}

struct Reordering {
  const ConvStrips& strips;
  const float* weights;
  float* ordered;
};

// The weights in the order that the strips read.
std::unique_ptr<Workspace> reorder(const ConvCpuPlan& plan, const float* weights, ParallelFor parallel_for,
                                   void* context) {
  const int64_t blocks = plan.strips.weight_blocks() * plan.geometry.group;
  if (blocks == 0) return nullptr;
  const auto count = static_cast<size_t>(plan.geometry.out_channels * plan.strips.products());
  auto memory = std::make_unique<Workspace>(count * sizeof(float));
  Reordering reordering{plan.strips, weights, static_cast<float*>(memory->data())};
  const auto block = [](void* data, size_t index) {
    const auto& own = *static_cast<const Reordering*>(data);
    own.strips.reorder_weights(own.weights, static_cast<int64_t>(index), own.ordered);
  };
  if (count < kSmall) {
    for (int64_t b = 0; b < blocks; ++b) block(&reordering, static_cast<size_t>(b));
  } else {
    parallel_for(context, block, static_cast<size_t>(blocks), &reordering);
  }
  return memory;
}

}  // namespace

ConvCpuPlan::ConvCpuPlan(const PlanKey& node_key, const ConvGeometry& conv, DType conv_type, ConvEpilogue conv_epilogue)
    : key(node_key),
      geometry(conv),
      type(conv_type),
      strips(conv, kernels().floats),
      epilogue(std::move(conv_epilogue)) {
  if (ConvLanes::suits(conv, kernels().floats)) {
    lanes = std::make_unique<const ConvLanes>(conv, kernels().floats);
    groups_at_once = lanes->lanes();
    filters_at_once = 1;
    return;
  }
  const int64_t strips_of_all = conv.batch * strips.count();
  const auto results = static_cast<double>(divide_up(elements(conv.out), strips.count()) * strips.filters());
  const double products = results * static_cast<double>(strips.products() + kResultProducts);
  groups_at_once = std::clamp<int64_t>(static_cast<int64_t>(kUnitProducts / products), 1,
                                       divide_up(conv.group, std::min<int64_t>(kUnits, conv.group)));
  filters_at_once = strips.filters();
  if (const int64_t units = strips_of_all * conv.group; units < kUnits && groups_at_once == 1) {
    const auto worth = static_cast<int64_t>(std::min(products / kSplitProducts, static_cast<double>(kUnits)));
    const int64_t parts = std::clamp<int64_t>(std::min(worth, divide_up(kUnits, units)), 1,
                                              std::max<int64_t>(strips.filters() / kUnitFilters, 1));
    const int64_t block = std::min<int64_t>(strips.filters_at_once(), 8);
    filters_at_once = divide_up(divide_up(strips.filters(), parts), block) * block;
  }
}

std::shared_ptr<const ConvCpuPlan> make_conv_cpu_plan(const ConvNode& node, DType type, const Program* prologue,
                                                      const Program& epilogue, const PlanKey& key,
                                                      const ConvShapes& shapes) {
  int64_t count = 0;
  const Shape& result = shapes.geometry.output;
  if (!element_count(result, &count) || count == 0) return nullptr;
  auto plan = std::make_shared<ConvCpuPlan>(key, shapes.geometry, type,
                                            make_conv_epilogue(node, type, epilogue, key.shapes, result));
  // ConvLanes reads X itself.
  if (prologue != nullptr && type == DType::f32 && plan->strips.is_product() && plan->lanes == nullptr) {
    plan->prologue_plan = make_conv_prologue(node, *prologue, key.shapes);
    if (plan->prologue_plan != nullptr) plan->prologue = prologue;
  }
  return plan;
}

void run_conv_cpu(const ConvCpuPlan& plan, const ConvTensors& tensors, ParallelFor parallel_for, void* context) {
  const ConvGeometry& g = plan.geometry;
  const int64_t image = g.batch * g.in_channels * elements(g.in);
  const int64_t filters = g.out_channels * plan.strips.products();
  const auto wide_x = widen(plan.type, tensors.x, image, parallel_for, context);
  const auto wide_weights = widen(plan.type, tensors.weights, filters, parallel_for, context);
  Run run(plan, tensors);
  run.x = static_cast<const float*>(wide_x ? wide_x->data() : tensors.x);
  run.end = run.x + image;
  run.weights = static_cast<const float*>(wide_weights ? wide_weights->data() : tensors.weights);
  const auto ordered = reorder(plan, run.weights, parallel_for, context);
  if (ordered != nullptr) run.weights = static_cast<const float*>(ordered->data());
  const auto copies = copy_strips(&run, parallel_for, context);
  if (run.units == 1) {
    compute_units(&run, 0);
  } else {
    parallel_for(context, compute_units, static_cast<size_t>(std::min(run.units, kMaxThreads)), &run);
  }
  if (run.failed) throw Error("out of memory for a thread's part of the convolution");
}

}  // namespace onnxfuse
