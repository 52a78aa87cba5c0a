#include "executable/executable_api.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include "executable/executable.h"

using Shared = std::shared_ptr<const onnxfuse::Executable>;

struct onnxfuse_executable {
  Shared shared;  // with its bindings
};

struct onnxfuse_binding : onnxfuse::Binding {
  using Binding::Binding;
};

struct onnxfuse_memory {
  Shared executable;  // where it goes back
  onnxfuse::Block block;
};

namespace {

std::string& last_error() {
  static thread_local std::string error;
  return error;
}

void remember(const std::string& error) noexcept {
  try {
    last_error() = error;
  } catch (const std::exception&) {
    last_error().clear();
  }
}

// Runs `body`; what it throws becomes text.
template <class Body> bool succeeds(const Body& body) noexcept {
  try {
    body();
    return true;
  } catch (const std::exception& exception) {
    remember(exception.what());
  }
  return false;
}

}  // namespace

const char* onnxfuse_last_error() { return last_error().c_str(); }

onnxfuse_executable* onnxfuse_executable_create(const onnxfuse_node* nodes, size_t node_count, const onnxfuse_value* values,
                                                size_t value_count, size_t threads) {
  std::unique_ptr<onnxfuse_executable> executable;
  succeeds([&] {
    auto shared = std::make_shared<const onnxfuse::Executable>(nodes, node_count, values, value_count, threads);
    executable = std::make_unique<onnxfuse_executable>(onnxfuse_executable{std::move(shared)});
  });
  return executable.release();
}

void onnxfuse_executable_release(onnxfuse_executable* executable) { delete executable; }

onnxfuse_binding* onnxfuse_binding_create(const onnxfuse_executable* executable) {
  std::unique_ptr<onnxfuse_binding> binding;
  succeeds([&] { binding = std::make_unique<onnxfuse_binding>(executable->shared); });
  return binding.release();
}

void onnxfuse_binding_release(onnxfuse_binding* binding) { delete binding; }

int onnxfuse_binding_bind(onnxfuse_binding* binding, size_t value, void* data, const int64_t* dims, size_t rank) {
  return succeeds([&] { binding->bind(value, data, dims, rank); }) ? 0 : 1;
}

int onnxfuse_binding_move(onnxfuse_binding* binding, size_t value, void* data) {
  return succeeds([&] { binding->move(value, data); }) ? 0 : 1;
}

int onnxfuse_binding_run(onnxfuse_binding* binding) { return succeeds([&] { binding->run(); }) ? 0 : 1; }

int64_t onnxfuse_binding_result(onnxfuse_binding* binding, size_t value, int64_t* dims, const void** data) {
  int64_t rank = -1;
  succeeds([&] {
    const onnxfuse::Shape shape = binding->result(value, data);
    std::copy_n(shape.dims.begin(), shape.rank, dims);
    rank = shape.rank;
  });
  return rank;
}

onnxfuse_memory* onnxfuse_binding_take(onnxfuse_binding* binding, size_t value, void** data) {
  std::unique_ptr<onnxfuse_memory> memory;
  succeeds([&] {
    memory = std::make_unique<onnxfuse_memory>();
    memory->executable = binding->executable();
    memory->block = binding->take(value);
  });
  if (memory == nullptr || memory->block.memory == nullptr) return nullptr;
  *data = memory->block.memory.get();
  return memory.release();
}

void onnxfuse_memory_release(onnxfuse_memory* memory) {
  memory->executable->memory().give_back(std::move(memory->block));
  delete memory;
}
