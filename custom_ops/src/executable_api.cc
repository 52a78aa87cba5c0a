// What the library exports for models that run without ONNX Runtime, for onnxfuse/executable.py alone.  Where one fails,
// onnxfuse_last_error says why in one line.
#include <algorithm>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "executable.h"
#include "ort_call.h"

namespace {

using onnxfuse::Binding;
using onnxfuse::Executable;
using onnxfuse::Shape;

using Shared = std::shared_ptr<const Executable>;  // by its bindings

// Memory that a caller has taken, and where it goes back.
struct Taken {
  Shared executable;
  onnxfuse::Block block;
};

// Why the thread's last call failed.
std::string& last_error() {
  static thread_local std::string error;
  return error;
}

// Runs `body`; what it throws becomes text.
template <class Body> bool succeeds(const Body& body) noexcept {
  try {
    body();
    return true;
  } catch (const onnxfuse::OrtFailure& failure) {
    last_error() = onnxfuse::status_message(failure.status());
  } catch (const std::exception& exception) {
    last_error() = exception.what();
  }
  return false;
}

}  // namespace

#define ONNXFUSE_EXPORT extern "C" __attribute__((visibility("default")))

ONNXFUSE_EXPORT const char* onnxfuse_last_error() { return last_error().c_str(); }

// The nodes of a model, in the order in which they run, on so many threads; null if they cannot.
ONNXFUSE_EXPORT Shared* onnxfuse_executable_create(const onnxfuse_node* nodes, size_t node_count,
                                                   const onnxfuse_value* values, size_t value_count, size_t threads) {
  std::unique_ptr<Shared> executable;
  succeeds([&] {
    executable = std::make_unique<Shared>(
        std::make_shared<const Executable>(nodes, node_count, values, value_count, threads));
  });
  return executable.release();
}

// Its bindings go on.
ONNXFUSE_EXPORT void onnxfuse_executable_release(Shared* executable) { delete executable; }

// Null if there is no memory.
ONNXFUSE_EXPORT Binding* onnxfuse_binding_create(const Shared* executable) {
  std::unique_ptr<Binding> binding;
  succeeds([&] { binding = std::make_unique<Binding>(*executable); });
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

// 0, or 1 if it fails.
ONNXFUSE_EXPORT int onnxfuse_binding_run(Binding* binding) { return succeeds([&] { binding->run(); }) ? 0 : 1; }

// The rank of a value that a run has computed, its sizes in `dims`, which has room for 16, and its elements.
ONNXFUSE_EXPORT size_t onnxfuse_binding_result(const Binding* binding, size_t value, int64_t* dims, const void** data) {
  const onnxfuse::Tensor& tensor = binding->tensor(value);
  std::copy_n(tensor.shape.dims.begin(), tensor.shape.rank, dims);
  *data = tensor.data;
  return static_cast<size_t>(tensor.shape.rank);
}

// The memory of a value that a run has computed, until it is released, and where it is.  Null if there is none.
ONNXFUSE_EXPORT Taken* onnxfuse_binding_take(Binding* binding, size_t value, void** data) {
  std::unique_ptr<Taken> taken;
  succeeds([&] { taken = std::make_unique<Taken>(Taken{binding->executable(), binding->take(value)}); });
  if (taken != nullptr) *data = taken->block.memory.get();
  return taken.release();
}

ONNXFUSE_EXPORT void onnxfuse_memory_release(Taken* taken) {
  taken->executable->memory().give_back(std::move(taken->block));
  delete taken;
}
