#include "plan/plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "plan/stage_builder.h"
#include "platform/cache_lines.h"
#include "platform/integers.h"

namespace onnxfuse {
namespace {

// Which instructions contribute to an output.
std::vector<bool> find_live(const Program& program) {
  std::vector<bool> live(program.values.size());
  for (const uint16_t id : program.outputs) live[id] = true;
  for (size_t id = program.values.size(); id-- > 0;) {
    const Value& value = program.values[id];
    if (!live[id]) continue;
    for (int i = 0; i < operand_count(value); ++i) live[value.operands[i]] = true;
  }
  return live;
}

int count_wide_dims(const Shape& shape) {
  return static_cast<int>(std::count_if(shape.dims.begin(), shape.dims.begin() + shape.rank, [](int64_t d) { return d != 1; }));
}

struct ShapeLess {
  // Broadcasting only ever widens dimensions of one element, so this order is one in which stages can run.
  bool operator()(const Shape& a, const Shape& b) const {
    const int wide_a = count_wide_dims(a);
    const int wide_b = count_wide_dims(b);
    if (wide_a != wide_b) return wide_a < wide_b;
    if (a.rank != b.rank) return a.rank < b.rank;
    return std::lexicographical_compare(a.dims.begin(), a.dims.begin() + a.rank, b.dims.begin(), b.dims.begin() + b.rank);
  }
};

size_t bytes_of(const Shape& shape, size_t element_size) {
  int64_t count = 0;
  element_count(shape, &count);
  return static_cast<size_t>(count) * element_size;
}

// Bytes from the first to the last element of an output in its tensor.
size_t extent(const OutputPart& part, const Shape& shape, size_t size) {
  int64_t count = 0;
  element_count(shape, &count);
  if (count == 0) return 0;
  return static_cast<size_t>((count / part.run - 1) * part.step + part.run) * size;
}

}  // namespace

std::shared_ptr<const Plan> make_plan(const Program& program, const PlanKey& key, std::string* error) {
  std::vector<Shape> shapes;
  std::vector<Shape> outputs;
  if (!resolve_shapes(program, key.shapes, &shapes, error)) return nullptr;
  std::vector<OutputPart> parts;
  if (!resolve_outputs(program, shapes, &outputs, error, &parts)) return nullptr;
  return make_plan(program, key, shapes, outputs, error, std::move(parts));
}

std::shared_ptr<const Plan> make_plan(const Program& program, const PlanKey& key, const std::vector<Shape>& shapes,
                                      const std::vector<Shape>& outputs, std::string* error,
                                      std::vector<OutputPart> parts) {
  auto plan = std::make_shared<Plan>();
  plan->key = key;
  plan->inputs.resize(program.input_count);
  plan->outputs.resize(program.outputs.size());
  plan->output_shapes = outputs;
  plan->parts = std::move(parts);
  for (size_t i = 0; i < plan->inputs.size(); ++i) {
    plan->inputs[i].bytes = bytes_of(key.shapes[i], storage_size(program.values[i].type));
  }
  for (size_t o = 0; o < plan->outputs.size(); ++o) {
    const uint16_t id = program.outputs[o];
    const size_t size = storage_size(program.values[id].type);
    plan->outputs[o].bytes = plan->parts.empty() ? bytes_of(shapes[id], size) : extent(plan->parts[o], shapes[id], size);
  }

  // Shapes that differ only in leading ones share a stage.
  std::map<Shape, StageRequest, ShapeLess> requests;
  const std::vector<bool> live = find_live(program);
  const auto request_of = [&](size_t id) -> StageRequest& { return requests[without_leading_ones(shapes[id])]; };
  std::vector<int64_t> scratch(program.values.size(), -1);
  for (size_t id = 0; id < program.values.size(); ++id) {
    const Value& value = program.values[id];
    if (!live[id] || value.kind != Value::Kind::Instruction) continue;
    request_of(id).instructions.push_back(static_cast<uint16_t>(id));
    const Shape shape = without_leading_ones(shapes[id]);
    for (int i = 0; i < info(value.op).arity; ++i) {
      const uint16_t operand = value.operands[i];
      if (program.values[operand].kind != Value::Kind::Instruction || scratch[operand] >= 0) continue;
      if (without_leading_ones(shapes[operand]) == shape) continue;
      scratch[operand] = static_cast<int64_t>(plan->scratch_bytes);
      const size_t bytes = bytes_of(shapes[operand], compute_size(program.values[operand].type));
      if (__builtin_add_overflow(plan->scratch_bytes, round_up(bytes, kCacheLine), &plan->scratch_bytes)) {
        *error = "intermediate values need too much memory";
        return nullptr;
      }
      request_of(operand).kept.push_back(operand);
    }
  }
  for (size_t o = 0; o < program.outputs.size(); ++o) {
    request_of(program.outputs[o]).outputs.push_back(static_cast<uint16_t>(o));
  }

  for (const auto& [shape, request] : requests) {
    int64_t count = 0;
    element_count(shape, &count);
    if (count == 0) continue;
    StageBuilder(program, shapes, scratch, shape, request, plan.get()).build();
  }
  return plan;
}

void find_outputs(const Program& program, const Plan& plan, void* const* tensors, void** outputs) {
  for (size_t o = 0; o < program.outputs.size(); ++o) {
    if (plan.parts.empty()) {
      outputs[o] = tensors[o];
      continue;
    }
    const OutputPart& part = plan.parts[o];
    const int64_t before = part.offset * static_cast<int64_t>(storage_size(output_type(program, o)));
    outputs[o] = static_cast<char*>(tensors[part.tensor]) + before;
  }
}

}  // namespace onnxfuse
