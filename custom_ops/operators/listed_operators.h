// The operators that a model needs, found in its local functions without reading its graph, which is most of a file: a
// session asks for them before ONNX Runtime loads the model, so that only these are registered.
#ifndef ONNXFUSE_LISTED_OPERATORS_H_
#define ONNXFUSE_LISTED_OPERATORS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "platform/system.h"

namespace onnxfuse {

// The bytes of a serialized model, in memory or in a file.
class ModelBytes {
 public:
  ModelBytes(const void* data, size_t size) : data_(static_cast<const char*>(data)), size_(size) {}
  // Throws Error if the file cannot be opened.
  explicit ModelBytes(const char* path) : file_(path), size_(file_->size()) {}

  uint64_t size() const { return size_; }
  // Those from `at` on, up to `size` of them or to the end; in `*buffer` if they come from a file, and valid as long as
  // it is not changed.  Throws Error if they cannot be read.
  std::string_view read(uint64_t at, size_t size, std::string* buffer) const;

 private:
  std::optional<File> file_;
  const char* data_ = nullptr;
  uint64_t size_ = 0;
};

// Operators of a family, by their numbers.
struct OperatorRange {
  std::string family;
  int first;
  int last;
  bool of_floats;  // all their inputs and outputs are of float32
};

// The operators that a ModelProto has local functions of `domain` for, in order.  Throws Error if these are no bytes of a
// ModelProto.
std::vector<OperatorRange> list_operators(const ModelBytes& model, std::string_view domain);

// The same of any types.
std::vector<OperatorRange> without_types(const std::vector<OperatorRange>& operators);

// A list as text: names with commas between.  "NAME_2..5" are NAME_2 to NAME_5; behind what is of floats alone comes
// "=float".
std::string write_operators(const std::vector<OperatorRange>& operators);

// "*" among them, which is none, stands for those that are registered where there is no list.
std::vector<OperatorRange> parse_operators(std::string_view text);

}  // namespace onnxfuse

#endif  // ONNXFUSE_LISTED_OPERATORS_H_
