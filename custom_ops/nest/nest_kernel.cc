#include "nest/nest_kernel.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "nest/named_rows.h"
#include "platform/error.h"
#include "runtime/node.h"

namespace onnxfuse {

namespace {

void take_apart(const uint8_t* bytes, size_t count, uint8_t* elements) {
  for (size_t i = 0; i < count; ++i) {
    elements[2 * i] = bytes[i] & 15;
    elements[2 * i + 1] = bytes[i] >> 4;
  }
}

}  // namespace

NestKernel::NestKernel(const Program& program)
    : program_(with_reciprocals(program)),
      of_bytes_(without_nibbles(program_)),
      whole_(without_named_rows(of_bytes_)),
      names_rows_(names_rows(program_)) {
  for (size_t i = 0; i < program_.input_count; ++i) {
    if (has_nibbles(program_.values[i].view)) packed_.push_back(i);
  }
}

void NestKernel::compute(const Host& host, const PlanKey& key, const void** inputs, void** outputs,
                         const OutputMemory& output_memory) {
  if (packed_.empty() && !names_rows_) return run(host, key, inputs, outputs, output_memory);
  PlanKey whole = key;
  std::vector<RunMemory> elements;
  for (const size_t i : packed_) {
    Shape& shape = whole.shapes[i];
    const size_t bytes = bytes_of(shape, DType::u8);
    int64_t* const last = shape.rank == 0 ? nullptr : &shape.dims[static_cast<size_t>(shape.rank - 1)];
    if (last == nullptr || bytes > SIZE_MAX / 2 || __builtin_mul_overflow(*last, 2, last)) {
      throw Error("input " + std::to_string(i) + " of shape " + to_string(key.shapes[i]) + " has no halves of bytes");
    }
    elements.emplace_back(host, 2 * bytes);
    take_apart(static_cast<const uint8_t*>(inputs[i]), bytes, static_cast<uint8_t*>(elements.back().data()));
    inputs[i] = elements.back().data();
  }
  if (!names_rows_) return run(host, whole, inputs, outputs, output_memory);
  const NamedRows rows(host, of_bytes_, whole, inputs);
  run(host, rows.key(), inputs, outputs, output_memory);
}

void NestKernel::run(const Host& host, const PlanKey& key, const void** inputs, void** outputs,
                     const OutputMemory& output_memory) {
  const auto plan = plans_.find_or_make(
      key, [&](NestPlan* made, std::string* error) { return make_nest_plan(whole_, key, made, error); });
  const size_t count = program_.outputs.size();
  for (size_t o = 0; o < count; ++o) outputs[o] = output_memory(o, plan->output_shapes[o], output_type(program_, o));
  const OverlappingOutputs overlapping(host, outputs, count, [&](size_t o) { return plan->output_bytes[o]; });
  // What a session's bindings have put where an output is, is copied first.
  std::vector<RunMemory> copies;
  for (size_t i = 0; i < program_.input_count; ++i) {
    const size_t bytes = plan->input_bytes[i];
    for (size_t o = 0; o < count; ++o) {
      if (!overlap(inputs[i], bytes, outputs[o], plan->output_bytes[o])) continue;
      copies.emplace_back(host, bytes);
      std::memcpy(copies.back().data(), inputs[i], bytes);
      inputs[i] = copies.back().data();
      break;
    }
  }
  run_nest(*plan, inputs, outputs, host);
  overlapping.copy();
}

}  // namespace onnxfuse
