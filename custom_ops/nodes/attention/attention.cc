#include "nodes/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "figures/attention.h"
#include "kernels/kernels.h"
#include "plan/cost.h"
#include "platform/denormals.h"
#include "platform/integers.h"
#include "runtime/parts.h"
#include "runtime/workspace.h"

namespace onnxfuse {
namespace {

// Scores at once, which stay in the second level of cache, and rows of them.
constexpr int64_t kScores = int64_t{1} << 15;
constexpr int64_t kRows = 64;
// Keys side by side, with which a product stays in the first level of cache.
constexpr int64_t kPanel = 96;
// The floats that an offset has the size of.
constexpr int64_t kOffset = sizeof(ptrdiff_t) / sizeof(float);
// Rows that a product computes at once.
constexpr int64_t kProductRows = 8;

bool fail(std::string problem, std::string* error) {
  *error = std::move(problem);
  return false;
}

struct Run {
  const Attention& node;
  const AttentionPlan& plan;
  const float* q;
  const float* k;
  const float* v;
  const float* mask;
  const uint8_t* choices;
  float* out;
  const float* keys_end;  // of the memory that K lies in
};

ptrdiff_t* offsets_at(float* memory, size_t place) { return reinterpret_cast<ptrdiff_t*>(memory + place); }

// Some rows of Q, of one head or one of each of several, that meet the same keys; and where their results go.
struct Rows {
  const float* q;
  int64_t q_pitch;
  const float* mask;  // null for none
  int64_t mask_pitch;
  const uint8_t* choices;  // null for none
  int64_t choice_pitch;
  float* out;
  int64_t out_pitch;
  int64_t count;
};

Rows rows_at(const Run& run, int64_t batch, int64_t head, int64_t row, int64_t count) {
  const AttentionPlan& plan = run.plan;
  const auto at = [&](const auto* data, int64_t part, const std::array<int64_t, 4>& strides) {
    return data == nullptr ? nullptr : data + part * strides[0] + head * strides[1] + row * strides[2];
  };
  const float* const q = run.q + batch % plan.q.batch * plan.q.per_batch + head * plan.q.per_head + row * plan.q.per_row;
  float* const out = run.out + batch * plan.result.per_batch + head * plan.result.per_head + row * plan.result.per_row;
  const float* const mask = at(run.mask, batch % plan.mask_batch, plan.mask);
  const uint8_t* const choices = at(run.choices, batch, plan.choices);
  return {q, plan.q.per_row, mask, plan.mask[2], choices, plan.choices[2], out, plan.result.per_row, count};
}

// One row of each of some heads.
Rows heads_at(const Run& run, int64_t batch, int64_t head, int64_t count) {
  Rows rows = rows_at(run, batch, head, 0, count);
  rows.q_pitch = run.plan.q.per_head;
  rows.mask_pitch = run.plan.mask[1];
  rows.choice_pitch = run.plan.choices[1];
  rows.out_pitch = run.plan.result.per_head;
  return rows;
}

const float* keys_of(const Run& run, int64_t batch, int64_t head) {
  return run.k + batch % run.plan.k.batch * run.plan.k.per_batch + head * run.plan.k.per_head;
}

const float* values_of(const Run& run, int64_t batch, int64_t head) {
  return run.v + batch % run.plan.v.batch * run.plan.v.per_batch + head * run.plan.v.per_head;
}

// The keys of a head as panels of columns.
void take_keys(const Run& run, const float* k, float* keys) {
  const AttentionPlan& plan = run.plan;
  const auto floats = static_cast<int64_t>(kernels().floats);
  for (int64_t s = 0; s < plan.k.length; s += floats) {
    float* const to = keys + s / plan.panel * plan.per_panel + s % plan.panel;
    const int64_t lanes = std::min(floats, plan.k.length - s);
    for (int64_t c = 0; lanes < floats && c < plan.k.size; ++c) std::fill_n(to + c * plan.panel, floats, 0.0f);
    kernels().take_columns(to, static_cast<size_t>(plan.panel), k + s * plan.k.per_row,
                           static_cast<size_t>(plan.k.per_row), static_cast<size_t>(lanes),
                           static_cast<size_t>(plan.k.size), run.keys_end);
  }
}

// The values of a head in whole vectors.
void take_values(const Run& run, const float* v, float* values) {
  const AttentionPlan& plan = run.plan;
  for (int64_t s = 0; s < plan.v.length; ++s, values += plan.padded_size) {
    std::copy_n(v + s * plan.v.per_row, plan.v.size, values);
    std::fill_n(values + plan.v.size, plan.padded_size - plan.v.size, 0.0f);
  }
}

// Scores of rows and all keys, which lie in panels in the task's memory.
void score_panels(const AttentionPlan& plan, const Rows& rows, float* memory) {
  for (int64_t s = 0; s < plan.padded_keys; s += plan.panel) {
    kernels().conv_sums({nullptr, rows.q, static_cast<size_t>(rows.q_pitch), memory + s / plan.panel * plan.per_panel,
                         offsets_at(memory, plan.key_offsets), static_cast<size_t>(plan.k.size),
                         memory + plan.scores + s, static_cast<size_t>(plan.padded_keys),
                         static_cast<size_t>(rows.count),
                         static_cast<size_t>(std::min(plan.panel, plan.padded_keys - s))});
  }
}

// Scores of rows and all keys, where these lie.
void score_keys(const AttentionPlan& plan, const Rows& rows, const float* k, float* memory) {
  kernels().conv_dots({k, static_cast<size_t>(plan.k.per_row), rows.q, static_cast<size_t>(rows.q_pitch),
                       static_cast<size_t>(plan.k.size), memory + plan.scores, 1,
                       static_cast<size_t>(plan.padded_keys), static_cast<size_t>(plan.k.length),
                       static_cast<size_t>(rows.count)});
}

// The results of rows, with their scores in the task's memory.
void finish_rows(const Run& run, const Rows& rows, const float* values, float* memory) {
  const AttentionPlan& plan = run.plan;
  float* const scores = memory + plan.scores;
  float* const results = memory + plan.results;
  float* const factors = memory + plan.factors;
  SoftmaxRows softmax{};
  softmax.scores = scores;
  softmax.pitch = static_cast<size_t>(plan.padded_keys);
  softmax.rows = static_cast<size_t>(rows.count);
  softmax.n = static_cast<size_t>(plan.k.length);
  softmax.scale = run.node.scale;
  softmax.nan_as_zero = run.node.nan_as_zero;
  softmax.masked_as_zero = run.node.masked_as_zero;
  softmax.factors = factors;
  if (rows.mask != nullptr) {
    softmax.mask = rows.mask;
    softmax.mask_pitch = static_cast<size_t>(rows.mask_pitch);
    softmax.one_mask = plan.mask[3] == 0;
  }
  if (rows.choices != nullptr) {
    softmax.choices = rows.choices;
    softmax.choice_pitch = static_cast<size_t>(rows.choice_pitch);
    softmax.one_choice = plan.choices[3] == 0;
    softmax.fills = run.node.fills;
    softmax.fill = run.node.fill;
  }
  kernels().softmax_rows(softmax);
  kernels().conv_sums({nullptr, scores, static_cast<size_t>(plan.padded_keys), values,
                       offsets_at(memory, plan.value_offsets), static_cast<size_t>(plan.k.length), results,
                       static_cast<size_t>(plan.padded_size), static_cast<size_t>(rows.count),
                       static_cast<size_t>(plan.v.size)});
  kernels().scale_rows({rows.out, static_cast<size_t>(rows.out_pitch), results, static_cast<size_t>(plan.padded_size),
                        factors, static_cast<size_t>(rows.count), static_cast<size_t>(plan.v.size)});
}

// A part of one head's rows; its keys and values are copied unless they are those that were taken last.
void compute_copied(const Run& run, int64_t part, int64_t* taken, float* memory) {
  const AttentionPlan& plan = run.plan;
  const int64_t split = part % plan.splits;
  const int64_t head = part / plan.splits % run.node.heads;
  const int64_t batch = part / plan.splits / run.node.heads;
  const int64_t key_head = head / (run.node.heads / run.node.key_heads);
  const float* values = values_of(run, batch, key_head);
  if (batch * run.node.key_heads + key_head != *taken) {
    take_keys(run, keys_of(run, batch, key_head), memory);
    if (plan.copies_values) take_values(run, values, memory + plan.values);
  }
  if (plan.copies_values) values = memory + plan.values;
  *taken = batch * run.node.key_heads + key_head;
  const int64_t last = (split + 1) * plan.q.length / plan.splits;
  for (int64_t first = split * plan.q.length / plan.splits; first < last; first += plan.rows) {
    const Rows rows = rows_at(run, batch, head, first, std::min(plan.rows, last - first));
    score_panels(plan, rows, memory);
    finish_rows(run, rows, values, memory);
  }
}

// The few rows of some heads that share a head of keys and values, which are read where they lie.
void compute_in_place(const Run& run, int64_t part, float* memory) {
  const AttentionPlan& plan = run.plan;
  const int64_t parts = run.node.heads / plan.heads;  // of a batch
  const int64_t head = part % parts * plan.heads;
  const int64_t batch = part / parts;
  const int64_t key_head = head / (run.node.heads / run.node.key_heads);
  const float* const k = keys_of(run, batch, key_head);
  const float* values = values_of(run, batch, key_head);
  if (plan.copies_values) {
    take_values(run, values, memory + plan.values);
    values = memory + plan.values;
  }
  const auto compute = [&](const Rows& rows) {
    score_keys(plan, rows, k, memory);
    finish_rows(run, rows, values, memory);
  };
  if (plan.q.length == 1) return compute(heads_at(run, batch, head, plan.heads));
  for (int64_t i = 0; i < plan.heads; ++i) compute(rows_at(run, batch, head + i, 0, plan.q.length));
}

void compute_task(const Run& run, int64_t task) {
  const DenormalsAsZeros zeros;
  const AttentionPlan& plan = run.plan;
  const Workspace workspace(plan.floats * sizeof(float));
  auto* const memory = static_cast<float*>(workspace.data());
  ptrdiff_t* const key_offsets = offsets_at(memory, plan.key_offsets);
  if (plan.copies_keys) {
    for (int64_t c = 0; c < plan.k.size; ++c) key_offsets[c] = c * plan.panel;
  }
  ptrdiff_t* const value_offsets = offsets_at(memory, plan.value_offsets);
  const int64_t per_value = plan.copies_values ? plan.padded_size : plan.v.per_row;
  for (int64_t s = 0; s < plan.k.length; ++s) value_offsets[s] = s * per_value;
  const int64_t parts = plan.result.batch * run.node.heads / plan.heads * plan.splits;
  const auto begin = task * parts / plan.tasks;
  const auto end = (task + 1) * parts / plan.tasks;
  int64_t taken = -1;
  for (int64_t part = begin; part < end; ++part) {
    plan.copies_keys ? compute_copied(run, part, &taken, memory) : compute_in_place(run, part, memory);
  }
}

// How many of the heads that share keys are a part of the work, where all rows of these are few; else 0.
int64_t heads_in_place(const Attention& node, int64_t batch, int64_t length) {
  if (length > kUncopiedRows) return 0;
  const int64_t shared = node.heads / node.key_heads;
  int64_t heads = std::min(shared, kUncopiedRows / std::max<int64_t>(length, 1));
  while (shared % heads != 0 || (heads > 1 && batch * node.heads / heads < kUncopiedParts)) --heads;
  return heads;
}

// Divides the work where keys are copied, which each task does for itself: by heads of keys, by the heads that share them, or
// further by rows of Q.
void divide_copied(const Attention& node, int64_t batch, AttentionPlan* plan) {
  const HeadsView &q = plan->q, &k = plan->k, &v = plan->v;
  const int64_t shared = node.heads / node.key_heads;
  const int64_t groups = batch * node.key_heads;
  const auto keys = static_cast<double>(k.length);
  const double row = keys * (static_cast<double>(k.size + v.size) + kExpProducts);
  const double rows = static_cast<double>(shared * q.length) * row;
  const double copies = keys * static_cast<double>(k.size + (plan->copies_values ? v.size : 0)) * kCopiedKeyProducts;
  const int64_t most = shared * std::max<int64_t>(q.length / kSplitTaskRows, 1);
  double least = -1.0;
  for (int64_t parts = 1; parts <= most; ++parts) {
    if (parts < shared ? shared % parts != 0 : parts % shared != 0) continue;
    const double task = rows / static_cast<double>(parts) + copies;
    if (parts > 1 && task < kTaskProducts) break;
    const auto tasks = static_cast<double>(groups * parts);
    // It grows with the parts: none that follows costs less.
    const double balanced = (task + kSplitTaskProducts) * tasks;
    if (least >= 0.0 && balanced >= least) break;
    const double cost = balanced * imbalance(groups * parts);
    if (least >= 0.0 && cost >= least) continue;
    least = cost;
    plan->splits = divide_up(parts, shared);
    plan->tasks = static_cast<int64_t>(std::min(tasks, std::max(tasks * task / kTaskProducts, 1.0)));
  }
}

}  // namespace

bool make_attention_plan(const Attention& node, const PlanKey& key, AttentionPlan* plan, std::string* error) {
  plan->key = key;
  if (!make_attention_layout(node, key, plan, error)) return false;
  if (plan->count == 0) return true;  // sizes that no memory bounds
  const HeadsView &q = plan->q, &k = plan->k, &v = plan->v;
  const int64_t batch = plan->result.batch;
  int64_t count = 0;  // of the scores
  element_count({4, {batch, node.heads, q.length, k.length}}, &count);

  const auto floats = static_cast<int64_t>(kernels().floats);
  plan->padded_keys = round_up(k.length, floats);
  plan->padded_size = round_up(v.size, floats);
  const int64_t in_place = heads_in_place(node, batch, q.length);
  plan->heads = std::max<int64_t>(in_place, 1);
  plan->copies_keys = in_place == 0;
  // Products read whole vectors, and rows that are far apart would drive each other out of the first level of cache.
  plan->copies_values = v.size % floats != 0 || (plan->copies_keys && v.per_row != v.size);
  const int64_t some = std::max<int64_t>(kScores / std::max<int64_t>(plan->padded_keys, 1), 1);
  plan->rows = std::min(round_up(std::min(some, kRows), kProductRows), std::max<int64_t>(q.length, 1));
  if (!plan->copies_keys) plan->rows = std::max(q.length, plan->heads);
  if (plan->copies_keys) {
    divide_copied(node, batch, plan);
  } else {
    const auto parts = static_cast<double>(std::max<int64_t>(batch * node.heads / plan->heads, 1));
    const double work = static_cast<double>(count) * (static_cast<double>(k.size + v.size) + kExpProducts);
    plan->splits = 1;
    plan->tasks = std::max<int64_t>(static_cast<int64_t>(std::min(work / kTaskProducts, parts)), 1);
  }
  plan->panel = std::max(std::min(kPanel, plan->padded_keys), floats);
  bool fits = true;
  const auto add = [plan, floats, &fits](int64_t rows, int64_t columns) {
    int64_t count = 0;
    fits = fits && element_count({2, {rows, columns}}, &count);
    const size_t begin = plan->floats;
    if (fits) plan->floats += static_cast<size_t>(round_up(count, floats));
    return begin;
  };
  const int64_t padded = round_up(k.size, floats);  // a copy of keys writes whole vectors of vectors
  if (plan->copies_keys) add(round_up(plan->padded_keys, plan->panel), padded);
  if (plan->copies_values) plan->values = add(k.length, plan->padded_size);
  if (plan->copies_keys) plan->key_offsets = add(k.size, kOffset);
  plan->value_offsets = add(k.length, kOffset);
  plan->scores = add(plan->rows, plan->padded_keys);
  plan->results = add(plan->rows, plan->padded_size);
  plan->factors = add(plan->rows, 1);
  fits = fits && element_count({1, {static_cast<int64_t>(plan->floats)}}, &count);  // so that their bytes can be told
  if (fits) plan->per_panel = plan->panel * padded;
  return fits || fail("K and V of shapes " + to_string(key.shapes[1]) + " and " + to_string(key.shapes[2]) +
                          " have too many elements", error);
}

void run_attention(const Attention& node, const AttentionPlan& plan, const std::vector<const void*>& inputs,
                   void* output, const Host& host) {
  if (plan.count == 0) return;
  auto* const out = static_cast<float*>(output);
  if (plan.k.length == 0) {
    std::fill_n(out, plan.count, 0.0f);
    return;
  }
  const auto operand = [&](size_t i) { return static_cast<const float*>(inputs[i]); };
  int64_t keys = 0;
  element_count(plan.key.shapes[1], &keys);
  const Run run{node, plan, operand(0) + plan.q.begin, operand(1) + plan.k.begin, operand(2) + plan.v.begin,
          node.masked ? operand(3) : nullptr,
          node.chosen ? static_cast<const uint8_t*>(inputs[node.choice_input()]) : nullptr, out, operand(1) + keys};
  run_parts(host, plan.tasks, [&](int64_t task) { compute_task(run, task); });
}

}  // namespace onnxfuse
