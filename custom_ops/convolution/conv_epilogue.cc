#include "convolution/conv_epilogue.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

namespace onnxfuse {
namespace {

// Takes the addition of a vector of channels, along `axis` of `rank`, out of a Program that begins with it, and returns the
// vector's input, or 0 if the Program begins otherwise.  Without it the epilogue of most convolutions treats all channels alike, and
// needs not stop between them.
size_t take_bias(Program* program, int axis, int rank) {
  const auto reads_result = [](const Value& value) {
    const auto* const end = value.operands + info(value.op).arity;
    return value.kind == Value::Kind::Instruction && std::find(value.operands, end, 0) != end;
  };
  std::vector<Value>& values = program->values;
  const auto first = std::find_if(values.begin(), values.end(), reads_result);
  if (first == values.end() || first->op != Op::Add || std::any_of(first + 1, values.end(), reads_result)) return 0;
  if (std::count(program->outputs.begin(), program->outputs.end(), 0) > 0) return 0;
  const uint16_t other = first->operands[0] == 0 ? first->operands[1] : first->operands[0];
  const Value& bias = values[other];
  if (other == 0 || bias.kind != Value::Kind::Input || !bias.along_axis) return 0;
  if (bias.axis != axis && bias.axis != axis - rank) return 0;
  const auto sum = static_cast<uint16_t>(first - values.begin());
  for (Value& value : values) {
    if (value.kind != Value::Kind::Instruction) continue;
    std::replace(value.operands, std::end(value.operands), sum, uint16_t{0});
  }
  std::replace(program->outputs.begin(), program->outputs.end(), sum, uint16_t{0});
  return other;
}

// Of types whose denormal numbers are denormal in what is computed with, as those of float16 are not; else 0.
int fraction_bits(DType type) {
  return type == DType::f32 ? 23 : type == DType::f64 ? 52 : type == DType::bf16 ? 7 : 0;
}

bool is_denormal(DType type, const void* number) {
  if (fraction_bits(type) == 0) return false;
  uint64_t bits = 0;
  std::memcpy(&bits, number, storage_size(type));
  const uint64_t magnitude = bits & ~(uint64_t{1} << (8 * storage_size(type) - 1));
  return magnitude > 0 && magnitude < uint64_t{1} << fraction_bits(type);
}

}  // namespace

ConvEpilogue make_conv_epilogue(DType type, const Program& program, std::vector<Shape> shapes, int axis) {
  ConvEpilogue epilogue;
  epilogue.source = &program;
  epilogue.program = program;
  if (type == DType::f32) {
    const size_t bias = take_bias(&epilogue.program, axis, shapes[0].rank);
    if (bias != 0 && shapes[bias].dims[0] == shapes[0].dims[static_cast<size_t>(axis)]) {
      epilogue.bias = bias;
    } else {
      epilogue.program = program;
    }
  }
  epilogue.plan = make_plan_of_parts(epilogue.program, std::move(shapes));
  return epilogue;
}

std::shared_ptr<const Plan> make_plan_of_parts(const Program& program, std::vector<Shape> shapes) {
  PlanKey key{std::move(shapes)};
  key.anywhere = true;
  std::string error;
  auto plan = make_plan(program, key, &error);
  const bool fits = plan != nullptr && plan->stages.size() == 1 && plan->scratch_bytes == 0 && plan->inputs[0].whole;
  return fits ? plan : nullptr;
}

void ProgramNumbers::add(const Program& program, const std::vector<Shape>& shapes, size_t first) {
  for (size_t id = 1; id < program.values.size(); ++id) {
    const Value& value = program.values[id];
    int64_t count = 0;
    if (value.kind == Value::Kind::Const) {
      denormal |= is_denormal(compute_type(value.type), &value.bits);
    } else if (value.kind == Value::Kind::Input && fraction_bits(value.type) > 0) {
      const size_t input = first + id - 1;
      if (element_count(shapes[input], &count) && count == 1) inputs.emplace_back(input, value.type);
    }
  }
}

bool ProgramNumbers::any_denormal(const void* const* data) const {
  return denormal || std::any_of(inputs.begin(), inputs.end(), [data](const auto& one) { return is_denormal(one.second, data[one.first]); });
}

}  // namespace onnxfuse
