#include "nodes/nhwc_concat/nhwc_concat.h"

#include <algorithm>
#include <utility>

#include "figures/nhwc_concat.h"
#include "figures/plan.h"
#include "kernels/kernels.h"
#include "plan/cost.h"
#include "runtime/parts.h"

namespace onnxfuse {
namespace {

bool fail(std::string problem, std::string* error) {
  *error = std::move(problem);
  return false;
}

bool differs_in_last_alone(const Shape& a, const Shape& b) {
  return a.rank == b.rank && std::equal(a.dims.begin(), a.dims.begin() + a.rank - 1, b.dims.begin());
}

// The rows from `begin` to `end`, one input after the other.
void copy_rows(const NhwcConcatPlan& plan, const std::vector<const void*>& inputs, float* output, int64_t begin,
               int64_t end) {
  const int64_t pitch = plan.output.from_back(0);
  float* to = output + begin * pitch;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int64_t length = plan.key.shapes[i].from_back(0);
    const float* const from = static_cast<const float*>(inputs[i]) + begin * length;
    if (length > 0) {
      kernels().place_runs(to, static_cast<size_t>(pitch), from, static_cast<size_t>(length),
                           static_cast<size_t>(end - begin));
    }
    to += length;
  }
}

}  // namespace

bool make_nhwc_concat_plan(const PlanKey& key, NhwcConcatPlan* plan, std::string* error) {
  if (key.shapes.empty()) return fail("the node has no inputs", error);
  plan->key = key;
  plan->output = key.shapes[0];
  if (plan->output.rank == 0) return fail("input 0 has no dimensions", error);
  int64_t& length = plan->output.dims[static_cast<size_t>(plan->output.rank - 1)];
  for (size_t i = 1; i < key.shapes.size(); ++i) {
    const Shape& shape = key.shapes[i];
    if (!differs_in_last_alone(key.shapes[0], shape)) {
      return fail("input " + std::to_string(i) + " of shape " + to_string(shape) + " does not fit input 0 of shape " +
                      to_string(key.shapes[0]), error);
    }
    if (__builtin_add_overflow(length, shape.from_back(0), &length)) return fail("the output is too large", error);
  }
  int64_t count = 0;
  if (!element_count(plan->output, &count)) {
    return fail("the output of shape " + to_string(plan->output) + " has too many elements", error);
  }
  if (count == 0) return true;
  plan->rows = count / length;
  const auto runs = static_cast<double>(plan->rows) * static_cast<double>(key.shapes.size());
  const double bytes = 2.0 * sizeof(float) * static_cast<double>(count);
  plan->tasks = parts_of(bytes * kByteNanoseconds + runs * kConcatRunNanoseconds, plan->rows);
  return true;
}

void run_nhwc_concat(const NhwcConcatPlan& plan, const std::vector<const void*>& inputs, void* output,
                     const Host& host) {
  if (plan.rows == 0) return;
  const auto begin_of = [&plan](int64_t task) { return task * plan.rows / plan.tasks; };
  run_parts(host, plan.tasks, [&](int64_t task) {
    copy_rows(plan, inputs, static_cast<float*>(output), begin_of(task), begin_of(task + 1));
  });
}

}  // namespace onnxfuse
