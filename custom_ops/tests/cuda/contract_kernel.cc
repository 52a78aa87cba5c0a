// A kernel for the stand-in driver that does what a recipe says of it, to the letter: it sets each output to the sum of
// some of the inputs, all in float32.
// tests/cuda/contract.py writes the functions that call contract_run.
#include <vector>

#include "tests/cuda/contract_decoder.h"
#include "tests/cuda/emulated_launch.h"

namespace {

// A vector is one aligned access, or one element for all of it.
bool vector_fits(const contract::Decoder& decoder, size_t k, uint64_t first, unsigned vector) {
  const int64_t begin = decoder.index(k, first);
  const bool contiguous = decoder.contiguous(k);
  for (unsigned v = 1; v < vector; ++v) {
    if (decoder.index(k, first + v * decoder.step(k)) != (contiguous ? begin + static_cast<int64_t>(v) : begin)) return false;
  }
  const size_t alignment = vector * sizeof(float) < 16 ? vector * sizeof(float) : 16;
  return vector == 1 || !contiguous || (decoder.address(k) + static_cast<uint64_t>(begin) * sizeof(float)) % alignment == 0;
}

}  // namespace

// `access` is the letters of inputs and outputs; `sums`, for each output, the inputs that are added up, such as "02".
// Returns what a GPU would refuse, or null.
extern "C" const char* contract_run(const char* access, int index, unsigned vector, size_t outputs,
                                    const char* const* sums, const EmulatedLaunch* launch) {
  const size_t operands = std::strlen(access);
  const contract::Decoder decoder(access, index == 64, launch->parameters, launch->bytes);
  if (!decoder.complete()) return "there are more parameters than are read";
  const uint64_t threads = uint64_t{launch->grid} * launch->block;
  if (!decoder.transposes() && threads * vector < decoder.count()) return "there are vectors without a thread";
  const auto element = [&](size_t k, uint64_t i) -> float& {
    return reinterpret_cast<float*>(decoder.address(k))[decoder.index(k, i)];
  };
  std::vector<float> results(outputs);
  for (uint64_t i = 0; i < decoder.count(); ++i) {
    for (size_t k = 0; k < operands; ++k) {
      const bool whole = decoder.begins(k, i, vector) && i + (vector - 1) * decoder.step(k) < decoder.count();
      if (whole && !vector_fits(decoder, k, i, vector)) return "a vector is not of one piece, or not aligned";
    }
    // A thread has read its elements before it writes any.
    for (size_t o = 0; o < outputs; ++o) {
      results[o] = 0.0f;
      for (const char* input = sums[o]; *input != 0; ++input) results[o] += element(static_cast<size_t>(*input - '0'), i);
    }
    for (size_t o = 0; o < outputs; ++o) {
      const size_t k = operands - outputs + o;
      if (decoder.writes(k, i)) element(k, i) = results[o];
    }
  }
  return nullptr;
}
