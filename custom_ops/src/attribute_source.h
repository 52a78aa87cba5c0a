// A node's attributes, wherever they come from: a node that ORT creates, one whose shapes it infers, or a test.
#ifndef ONNXFUSE_ATTRIBUTE_SOURCE_H_
#define ONNXFUSE_ATTRIBUTE_SOURCE_H_

#include <cstdint>
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

}  // namespace onnxfuse

#endif  // ONNXFUSE_ATTRIBUTE_SOURCE_H_
