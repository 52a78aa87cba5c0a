// What the library exports for models that run without ONNX Runtime, for onnxfuse/run/executable.py.
//
// Pointers are to what their parameter says and are not null unless it says so; all else is checked.  Where a function fails,
// onnxfuse_last_error says why in one line.
#ifndef ONNXFUSE_EXECUTABLE_API_H_
#define ONNXFUSE_EXECUTABLE_API_H_

#include <cstddef>
#include <cstdint>

#include "platform/exports.h"

extern "C" {

// An attribute of a node: `size` bytes of text, a list of `count` numbers, or with a `count` of -1 one number.
struct onnxfuse_attribute {
  const char* name;
  const char* text;  // null if it has numbers
  size_t size;
  const int64_t* numbers;
  int64_t count;
};

// A node, and which values it reads and writes; -1 for an input that is left out.
struct onnxfuse_node {
  const char* op;
  const char* name;
  const int64_t* inputs;
  size_t input_count;
  const int64_t* outputs;
  size_t output_count;
  const onnxfuse_attribute* attributes;
  size_t attribute_count;
};

// The name of a value, its ONNX element type, and whether it is wanted when a run has ended.
struct onnxfuse_value {
  const char* name;
  int32_t type;
  int32_t is_output;
};

// The nodes of a model; the tensors of one run of them, and of those after it; memory of a result.
struct onnxfuse_executable;
struct onnxfuse_binding;
struct onnxfuse_memory;

// Why the thread's last call failed.
ONNXFUSE_EXPORT const char* onnxfuse_last_error();

// The nodes of a model, in the order in which they run, on so many threads, 1024 at most; null if they cannot.
ONNXFUSE_EXPORT onnxfuse_executable* onnxfuse_executable_create(const onnxfuse_node* nodes, size_t node_count,
                                                                const onnxfuse_value* values, size_t value_count,
                                                                size_t threads);

// Its bindings go on.
ONNXFUSE_EXPORT void onnxfuse_executable_release(onnxfuse_executable* executable);

// Null if there is no memory.
ONNXFUSE_EXPORT onnxfuse_binding* onnxfuse_binding_create(const onnxfuse_executable* executable);

ONNXFUSE_EXPORT void onnxfuse_binding_release(onnxfuse_binding* binding);

// The functions of a binding fail while another thread is in one of them.

// Gives a value memory of the caller's, or takes it away where that is null.  0, or 1 if it fails.
ONNXFUSE_EXPORT int onnxfuse_binding_bind(onnxfuse_binding* binding, size_t value, void* data, const int64_t* dims,
                                          size_t rank);

// The same for a value that has been given memory before, whose shape stays.
ONNXFUSE_EXPORT int onnxfuse_binding_move(onnxfuse_binding* binding, size_t value, void* data);

// 0, or 1 if it fails.
ONNXFUSE_EXPORT int onnxfuse_binding_run(onnxfuse_binding* binding);

// The rank of a value that a run has computed, its sizes in `dims`, which has room for 16, and its elements; -1 if there is
// none.
ONNXFUSE_EXPORT int64_t onnxfuse_binding_result(onnxfuse_binding* binding, size_t value, int64_t* dims, const void** data);

// The memory of a value that a run has computed, until it is released, and where it is.  Null if there is none of the
// executable's.
ONNXFUSE_EXPORT onnxfuse_memory* onnxfuse_binding_take(onnxfuse_binding* binding, size_t value, void** data);

ONNXFUSE_EXPORT void onnxfuse_memory_release(onnxfuse_memory* memory);

#undef ONNXFUSE_EXPORT

}  // extern "C"

#endif  // ONNXFUSE_EXECUTABLE_API_H_
