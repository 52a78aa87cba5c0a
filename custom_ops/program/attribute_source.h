// A node's attributes, wherever they come from: a node that ORT creates, one whose shapes it infers, or a test.
#ifndef ONNXFUSE_ATTRIBUTE_SOURCE_H_
#define ONNXFUSE_ATTRIBUTE_SOURCE_H_

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace onnxfuse {

// Each function gives false if the node has no attribute of that name and type.
struct AttributeSource {
  std::function<bool(const char* name, std::string* text)> text;
  std::function<bool(const char* name, int64_t* number)> number;
  std::function<bool(const char* name, std::vector<int64_t>* numbers)> numbers;
};

// The finite float32 whose bits an attribute has.  False if there is none.
inline bool read_float_bits(const AttributeSource& source, const char* name, float* value) {
  int64_t bits = 0;
  if (!source.number(name, &bits) || bits < 0 || bits > UINT32_MAX) return false;
  const auto word = static_cast<uint32_t>(bits);
  std::memcpy(value, &word, sizeof word);
  return std::isfinite(*value);
}

}  // namespace onnxfuse

#endif  // ONNXFUSE_ATTRIBUTE_SOURCE_H_
