// What the library exports for models that run without ONNX Runtime.  A function that fails says why in one line.
#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include "executable.h"
#include "ort_call.h"

namespace {

using onnxfuse::Binding;
using onnxfuse::Executable;
using onnxfuse::Shape;

using Shared = std::shared_ptr<const Executable>;  // by its bindings

// Runs `body`; what it throws becomes text.
template <class Body> bool succeeds(std::string* error, const Body& body) noexcept {
  try {
    body();
    return true;
  } catch (const onnxfuse::OrtFailure& failure) {
    *error = onnxfuse::status_message(failure.status());
  } catch (const std::exception& exception) {
    *error = exception.what();
  }
  return false;
}

}  // namespace

#define ONNXFUSE_EXPORT extern "C" __attribute__((visibility("default")))

// The nodes of a model, in the order in which they run, on so many threads; null if they cannot, and `error`, of `capacity`
// bytes, says why.
ONNXFUSE_EXPORT Shared* onnxfuse_executable_create(const onnxfuse_node* nodes, size_t node_count,
                                                   const onnxfuse_value* values, size_t value_count, size_t threads,
                                                   char* error, size_t capacity) {
  std::unique_ptr<Shared> executable;
  std::string message;
  const bool succeeded = succeeds(&message, [&] {
    executable = std::make_unique<Shared>(
        std::make_shared<const Executable>(nodes, node_count, values, value_count, threads));
  });
  if (succeeded) return executable.release();
  const size_t length = std::min(message.size(), capacity - 1);
  std::memcpy(error, message.data(), length);
  error[length] = '\0';
  return nullptr;
}

// Its bindings go on.
ONNXFUSE_EXPORT void onnxfuse_executable_release(Shared* executable) { delete executable; }

// Null if there is no memory.
ONNXFUSE_EXPORT Binding* onnxfuse_binding_create(const Shared* executable) {
  std::unique_ptr<Binding> binding;
  std::string message;
  succeeds(&message, [&] { binding = std::make_unique<Binding>(*executable); });
  return binding.release();
}

ONNXFUSE_EXPORT void onnxfuse_binding_release(Binding* binding) { delete binding; }

// Gives a value memory of the caller's, or takes it away where that is null; its rank is at most 16.
ONNXFUSE_EXPORT void onnxfuse_binding_bind(Binding* binding, size_t value, void* data, const int64_t* dims, size_t rank) {
  Shape shape;
  shape.rank = static_cast<int>(rank);
  std::copy_n(dims, rank, shape.dims.begin());
  binding->bind(value, data, shape);
}

// The same for a value that has been given memory before, whose shape stays.
ONNXFUSE_EXPORT void onnxfuse_binding_move(Binding* binding, size_t value, void* data) { binding->move(value, data); }

// 0, or 1 if it fails: onnxfuse_binding_error says why.
ONNXFUSE_EXPORT int onnxfuse_binding_run(Binding* binding) {
  return succeeds(&binding->error, [&] { binding->run(); }) ? 0 : 1;
}

ONNXFUSE_EXPORT const char* onnxfuse_binding_error(const Binding* binding) { return binding->error.c_str(); }

// The rank of a value that a run has computed, its sizes in `dims`, which has room for 16, and its elements.
ONNXFUSE_EXPORT size_t onnxfuse_binding_result(const Binding* binding, size_t value, int64_t* dims, const void** data) {
  const onnxfuse::Tensor& tensor = binding->tensor(value);
  std::copy_n(tensor.shape.dims.begin(), tensor.shape.rank, dims);
  *data = tensor.data;
  return static_cast<size_t>(tensor.shape.rank);
}
