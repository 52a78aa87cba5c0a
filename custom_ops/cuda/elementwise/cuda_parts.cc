#include "cuda/elementwise/cuda_parts.h"

#include <algorithm>
#include <numeric>

namespace onnxfuse::cuda {

Part whole_part(const Program& program) {
  Part part;
  part.inputs.resize(program.input_count);
  part.outputs.resize(program.outputs.size());
  std::iota(part.inputs.begin(), part.inputs.end(), size_t{0});
  std::iota(part.outputs.begin(), part.outputs.end(), size_t{0});
  part.program = program;
  return part;
}

bool take_part(const Program& program, const std::vector<size_t>& outputs, Part* part, std::string* error) {
  for (size_t i = 0; i < program.input_count; ++i) {
    if (!program.values[i].along_axis || program.values[i].axis < 0) continue;
    *error = "input " + std::to_string(i) + " lies along an axis that is counted from the front, of all parts";
    return false;
  }
  std::vector<bool> needed(program.values.size(), false);
  for (const size_t output : outputs) needed[program.outputs[output]] = true;
  for (size_t v = program.values.size(); v-- > 0;) {
    if (!needed[v]) continue;
    for (int k = 0; k < operand_count(program.values[v]); ++k) needed[program.values[v].operands[k]] = true;
  }
  *part = Part{};
  part->outputs = outputs;
  part->program.contracts = program.contracts;
  std::vector<uint16_t> numbers(program.values.size(), 0);
  for (size_t v = 0; v < program.values.size(); ++v) {
    if (!needed[v]) continue;
    Value value = program.values[v];
    for (int k = 0; k < operand_count(value); ++k) value.operands[k] = numbers[value.operands[k]];
    numbers[v] = static_cast<uint16_t>(part->program.values.size());
    part->program.values.push_back(std::move(value));
    if (v < program.input_count) part->inputs.push_back(v);
  }
  part->program.input_count = part->inputs.size();
  for (const size_t output : outputs) {
    part->program.outputs.push_back(numbers[program.outputs[output]]);
    if (!program.output_views.empty()) part->program.output_views.push_back(program.output_views[output]);
  }
  return true;
}

bool is_appended(const Program& program, size_t output) {
  if (program.appends.empty()) return false;
  const bool is_followed = output + 1 < program.appends.size() && program.appends[output + 1] != 0;
  return program.appends[output] != 0 || is_followed;
}

}  // namespace onnxfuse::cuda
