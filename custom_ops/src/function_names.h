// The names of a model's local functions, found without reading its graph, which is most of a file: a session asks for
// them before ONNX Runtime loads the model, so that only the operators are registered that it has.
#ifndef ONNXFUSE_FUNCTION_NAMES_H_
#define ONNXFUSE_FUNCTION_NAMES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace onnxfuse {

// The bytes of a serialized model, in memory or in a file.
class ModelBytes {
 public:
  ModelBytes(const void* data, size_t size) : data_(static_cast<const char*>(data)), size_(size) {}
  // Throws Error if the file cannot be opened.
  explicit ModelBytes(const char* path);
  ~ModelBytes();
  ModelBytes(const ModelBytes&) = delete;
  ModelBytes& operator=(const ModelBytes&) = delete;

  uint64_t size() const { return size_; }
  // Those from `at` on, up to `size` of them or to the end; in `*buffer` if they come from a file, and valid as long as
  // it is not changed.  Throws Error if they cannot be read.
  std::string_view read(uint64_t at, size_t size, std::string* buffer) const;

 private:
  int file_ = -1;
  const char* data_ = nullptr;
  uint64_t size_ = 0;
};

// The names of the local functions of `domain` in a ModelProto, with commas between.  Throws Error if these are no bytes
// of a ModelProto.
std::string function_names(const ModelBytes& model, std::string_view domain);

}  // namespace onnxfuse

#endif  // ONNXFUSE_FUNCTION_NAMES_H_
