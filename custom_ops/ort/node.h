// A node as ORT shows it to the library: its name, its attributes, and the tensors of a run.
#ifndef ONNXFUSE_NODE_H_
#define ONNXFUSE_NODE_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ort/ort_abi.h"
#include "ort/session_host.h"
#include "plan/plan.h"
#include "program/attribute_source.h"
#include "program/program.h"
#include "runtime/host.h"

namespace onnxfuse {

// "onnxfuse::FusedElementwise node 'name': ", with which every message about a node begins.
std::string place(const char* op, const std::string& name);

std::string node_name(const OrtApi* api, const OrtKernelInfo* info);

// False if the node has no attribute of that name that is a string.
bool read_attribute(const OrtApi* api, const OrtKernelInfo* info, const char* name, std::string* bytes);

// All attributes of a node that ORT creates, as long as `info` lives.
AttributeSource attributes_of(const OrtApi* api, const OrtKernelInfo* info);

// The Program of an attribute.  Throws Error if there is none that is valid.
Program read_program(const OrtApi* api, const OrtKernelInfo* info, const char* attribute, Reads reads = Reads::Views);

// Bytes of a tensor.  Throws Error if they are too many.
size_t bytes_of(const Shape& shape, DType type);

// The tensors that a run gives a node.  Their memory is that of the same thread's last run, so that a run allocates none.
struct NodeInputs {
  NodeInputs() { swap_with_last(); }
  ~NodeInputs() { swap_with_last(); }
  NodeInputs(const NodeInputs&) = delete;
  NodeInputs& operator=(const NodeInputs&) = delete;

  PlanKey key;                    // their shapes
  std::vector<int> types;         // ONNX element types
  std::vector<const void*> data;  // on the provider's device
  std::vector<void*> outputs;     // room for them

 private:
  void swap_with_last();
};

// What all operators have in common.  Functions throw Error or OrtFailure.
class Node {
 public:
  enum class Provider { Cpu, Cuda };

  Node(const char* op, const OrtApi* api, const OrtKernelInfo* info, Provider provider = Provider::Cpu);

  const OrtApi* api() const { return api_; }
  const std::string& place() const { return place_; }

 protected:
  size_t input_count() const { return input_count_; }
  size_t output_count() const { return output_count_; }

  void read_inputs(const OrtKernelContext* context, NodeInputs* inputs) const;

  // Throws Error unless the node has as many inputs and outputs as its Program.
  void check_counts(const Program& program) const;

  // Throws Error unless input `i` of these ONNX element types is of `type`; or the operands that a Program has after its
  // first input, which are inputs from `first` on, are of its types.
  static void check_type(const std::vector<int>& types, size_t i, DType type);
  static void check_operands(const std::vector<int>& types, size_t first, const Program& program);

  // The memory of output `o`, on the provider's device.  Throws Error unless the tensor is of `type`: where ORT knows no
  // rank, its type is what the model declares.
  void* output(OrtKernelContext* context, size_t o, const Shape& shape, DType type) const;

  // Copies every input of these shapes, ONNX element types and `data` that lies where an output does, as a session's
  // bindings may have it, and puts the copy in its place: results are written while inputs are still read.
  static void keep_apart(const Host& host, const void* output, size_t bytes, const std::vector<Shape>& shapes,
                         const std::vector<int>& types, const void** data, std::vector<RunMemory>* copies);
  static void keep_apart(const Host& host, const void* output, size_t bytes, NodeInputs* inputs,
                         std::vector<RunMemory>* copies) {
    keep_apart(host, output, bytes, inputs->key.shapes, inputs->types, inputs->data.data(), copies);
  }

  // For a run on the CPU, whatever provider has the node.
  SessionHost session_host(const OrtKernelContext* context) const;

  // Logs a warning about the node, the first time that it is called.
  void warn_once(const std::string& message);

 private:
  int read_input(const OrtKernelContext* context, size_t i, Shape* shape, const void** data) const;
  int read_type_and_shape(const OrtValue* value, size_t i, Shape* shape) const;

  const OrtApi* api_;
  const OrtApi24* newer_api_;  // null if ORT is older
  std::string place_;
  size_t input_count_ = 0;
  size_t output_count_ = 0;
  const OrtLogger* logger_ = nullptr;
  std::optional<SessionAllocator> allocator_;  // of memory of the host: none on a GPU
  std::atomic<bool> warned_{false};
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_NODE_H_
