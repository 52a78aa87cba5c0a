#include "nodes/normalization/normalization.h"

#include <algorithm>
#include <utility>

#include "figures/normalization.h"
#include "kernels/kernels.h"
#include "plan/cost.h"
#include "platform/integers.h"
#include "runtime/parts.h"
#include "runtime/workspace.h"

namespace onnxfuse {
namespace {

// Elements of rows that a thread works on at once.
constexpr int64_t kElements = 4096;

bool fail(std::string problem, std::string* error) {
  *error = std::move(problem);
  return false;
}

bool read_program(const std::string& text, Program* program, std::string* error) {
  if (!parse_program(text, program, error)) return fail("the program attribute is not valid: " + *error, error);
  const bool fits = program->input_count > 0 && program->outputs.size() == 1 &&
                    output_type(*program, 0) == DType::f32;
  return fits || fail("the program attribute does not make one tensor of float32 from others", error);
}

// Sets `plan` to how the Program runs on all rows, or on some where it can.
bool plan_program(const Normalization& node, NormalizationPlan* plan, std::string* error) {
  const auto& shapes = plan->key.shapes;
  PlanKey key;
  key.shapes.assign(shapes.begin(), shapes.begin() + static_cast<ptrdiff_t>(node.program.input_count));
  plan->program = make_plan(node.program, key, error);
  if (plan->program == nullptr) return false;
  plan->output = plan->program->output_shapes[0];
  key.anywhere = true;
  auto parts = make_plan(node.program, key, error);
  plan->by_rows = parts != nullptr && parts->stages.size() == 1 && parts->scratch_bytes == 0;
  if (plan->by_rows) plan->program = std::move(parts);
  return true;
}

struct Run {
  const Normalization& node;
  const NormalizationPlan& plan;
  const std::vector<const void*>& inputs;
  float* out;
  float* normalized;  // what is normalized, if it is in memory; null where a task makes its rows and nobody else reads them
};

void normalize(const Run& run, const float* from, int64_t first, int64_t rows) {
  const NormalizationPlan& plan = run.plan;
  const auto vector = [&](size_t input) { return static_cast<const float*>(run.inputs[input]); };
  kernels().normalize_rows({from, run.out + first * plan.size, vector(run.node.scale()),
                            run.node.has_bias ? vector(run.node.bias()) : nullptr, static_cast<size_t>(rows),
                            static_cast<size_t>(plan.size), run.node.epsilon, run.node.centered});
}

void compute_task(const Run& run, int64_t task) {
  const NormalizationPlan& plan = run.plan;
  const int64_t begin = task * plan.rows / plan.tasks;
  const int64_t end = (task + 1) * plan.rows / plan.tasks;
  if (!run.node.has_program || !plan.by_rows) {
    const float* const from = run.node.has_program ? run.normalized : static_cast<const float*>(run.inputs[0]);
    return normalize(run, from + begin * plan.size, begin, end - begin);
  }
  const Workspace memory(run.normalized != nullptr ? 0 : static_cast<size_t>(plan.rows_at_once * plan.size) * sizeof(float));
  for (int64_t first = begin; first < end; first += plan.rows_at_once) {
    const int64_t rows = std::min(plan.rows_at_once, end - first);
    const int64_t element = first * plan.size;
    auto* const to = run.normalized != nullptr ? run.normalized + element : static_cast<float*>(memory.data());
    // The Program looks for its result where that is in the whole tensor.
    void* whole = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(to) - static_cast<uintptr_t>(element) * sizeof(float));
    run_elements(run.node.program, plan.program->stages[0], {run.inputs.data(), &whole, nullptr},
                 {element, rows * plan.size});
    normalize(run, to, first, rows);
  }
}

}  // namespace

bool read_normalization(const AttributeSource& source, size_t inputs, Normalization* node, std::string* error) {
  int64_t centered = 0;
  if (!source.number("centered", &centered) || (centered != 0 && centered != 1)) {
    return fail("the centered attribute is not 0 or 1", error);
  }
  int64_t keeps = 0;
  if (!source.number("keeps", &keeps) || (keeps != 0 && keeps != 1)) {
    return fail("the keeps attribute is not 0 or 1", error);
  }
  if (!read_float_bits(source, "epsilon_bits", &node->epsilon)) {
    return fail("the epsilon_bits attribute is not the bits of a finite float32", error);
  }
  node->centered = centered == 1;
  node->keeps = keeps == 1;
  std::string text;
  node->has_program = source.text("program", &text);
  if (node->has_program && !read_program(text, &node->program, error)) return false;
  if (node->keeps && !node->has_program) return fail("it keeps what is normalized without a program that makes it", error);
  node->has_bias = inputs == node->bias() + 1;
  return node->has_bias || inputs == node->scale() + 1 ||
         fail("the node has " + std::to_string(inputs) + " inputs, not " + std::to_string(node->scale()) +
                  " and the scale and perhaps the bias", error);
}

bool make_normalization_plan(const Normalization& node, const PlanKey& key, NormalizationPlan* plan, std::string* error) {
  plan->key = key;
  plan->output = key.shapes[0];
  if (node.has_program && !plan_program(node, plan, error)) return false;
  int64_t count = 0;
  if (plan->output.rank < 1 || !element_count(plan->output, &count)) {
    return fail("what is normalized, of shape " + to_string(plan->output) + ", has no rows, or too many elements", error);
  }
  plan->size = plan->output.from_back(0);
  for (size_t i = node.scale(); i < key.shapes.size(); ++i) {
    if (key.shapes[i].rank == 1 && key.shapes[i].dims[0] == plan->size) continue;
    return fail("input " + std::to_string(i) + " of shape " + to_string(key.shapes[i]) + " is not as long as a row of " +
                    to_string(plan->output), error);
  }
  if (count == 0) return true;
  plan->rows = count / plan->size;
  plan->rows_at_once = std::clamp<int64_t>(kElements / plan->size, 1, plan->rows);
  double work = static_cast<double>(count) * kNormalizedElementNanoseconds + static_cast<double>(plan->rows) * kNormalizedRowNanoseconds;
  if (plan->by_rows) {
    const Stage& stage = plan->program->stages[0];
    work += stage.tile_cost * static_cast<double>(stage.tiles);
  }
  plan->tasks = parts_of(work, plan->rows);
  return true;
}

void run_normalization(const Normalization& node, const NormalizationPlan& plan, const std::vector<const void*>& inputs,
                       void* output, void* normalized, const Host& host) {
  if (plan.rows == 0) return;
  const bool whole = node.has_program && !plan.by_rows;
  const size_t bytes = static_cast<size_t>(plan.rows * plan.size) * sizeof(float);
  const RunMemory memory(host, whole && normalized == nullptr ? bytes : 0);
  if (whole) {
    if (normalized == nullptr) normalized = memory.data();
    const RunMemory scratch(host, plan.program->scratch_bytes);
    run_plan(node.program, *plan.program, {inputs.data(), &normalized, static_cast<char*>(scratch.data())}, host);
  }
  const Run run{node, plan, inputs, static_cast<float*>(output), static_cast<float*>(normalized)};
  run_parts(host, plan.tasks, [&](int64_t task) { compute_task(run, task); });
}

}  // namespace onnxfuse
