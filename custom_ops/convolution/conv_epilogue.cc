#include "convolution/conv_epilogue.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
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

// With so many bits of fraction.
template <class Word> bool is_denormal(const void* number, int fraction) {
  Word bits;
  std::memcpy(&bits, number, sizeof bits);
  const Word magnitude = bits & (std::numeric_limits<Word>::max() >> 1);
  return magnitude > 0 && magnitude >> fraction == 0;
}

// Those of float16 are normal in what is computed with.
bool is_denormal(DType type, const void* number) {
  switch (type) {
    case DType::f32: return is_denormal<uint32_t>(number, 23);
    case DType::f64: return is_denormal<uint64_t>(number, 52);
    case DType::bf16: return is_denormal<uint16_t>(number, 7);
    default: return false;
  }
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
    } else if (value.kind == Value::Kind::Input) {
      const size_t input = first + id - 1;
      if (element_count(shapes[input], &count) && count == 1) inputs.emplace_back(input, value.type);
    }
  }
}

bool ProgramNumbers::any_denormal(const void* const* data) const {
  const auto is_one = [data](const auto& input) { return is_denormal(input.second, data[input.first]); };
  return denormal || std::any_of(inputs.begin(), inputs.end(), is_one);
}

}  // namespace onnxfuse
