// Fused nodes that run one after the other without ONNX Runtime: the library takes its place for them.
#ifndef ONNXFUSE_EXECUTABLE_H_
#define ONNXFUSE_EXECUTABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "block_pool.h"
#include "ort_abi.h"
#include "shape.h"
#include "thread_pool.h"

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

}  // extern "C"

namespace onnxfuse {

struct Attribute {
  std::string name;
  bool is_text;
  bool is_list;
  std::string text;
  std::vector<int64_t> numbers;
};

// What ONNX Runtime's OrtKernelInfo is here.
struct NodeInfo {
  std::string name;
  std::vector<int64_t> inputs;
  std::vector<int64_t> outputs;
  std::vector<Attribute> attributes;
};

// What a model's nodes are as they run: any number of Bindings may do so at once.
class Executable {
 public:
  struct Value {
    std::string name;
    int type;
  };

  // The nodes in the order in which they run.  `threads` run them together.  Throws Error, or OrtFailure with a status of
  // status_message.
  Executable(const onnxfuse_node* nodes, size_t node_count, const onnxfuse_value* values, size_t value_count,
             size_t threads);

  struct Step {
    NodeInfo info;
    const OrtCustomOp* op;
    std::unique_ptr<void, void (*)(void*)> kernel;
    std::vector<size_t> last_reads;  // values that no later step reads, and that are not wanted
  };

  const std::vector<Step>& steps() const { return steps_; }
  const std::vector<Value>& values() const { return values_; }
  ThreadPool& threads() const { return *threads_; }
  // What tensors are in that have no memory of the caller's.
  BlockPool& memory() const { return memory_; }

 private:
  void find_last_reads(const onnxfuse_value* values);

  std::vector<Value> values_;
  std::vector<Step> steps_;
  std::shared_ptr<ThreadPool> threads_;
  mutable BlockPool memory_;
};

// What ONNX Runtime's OrtValue is here: a tensor in memory of the caller's or of the executable's.
struct Tensor {
  const Executable::Value* value = nullptr;
  Shape shape;
  void* data = nullptr;  // null before it is bound or computed
  bool bound = false;
  Block block;
};

// The tensors of one run of an executable, and of those after it.
class Binding {
 public:
  explicit Binding(std::shared_ptr<const Executable> executable);
  ~Binding();
  Binding(const Binding&) = delete;
  Binding& operator=(const Binding&) = delete;

  const std::shared_ptr<const Executable>& executable() const { return executable_; }

  // Memory of the caller for a value: an input, which is read, or an output, which must come to have this shape.  An output
  // with none gets some of the executable's.
  void bind(size_t value, void* data, const Shape& shape);
  // Other memory for a value that has been bound, whose shape stays.
  void move(size_t value, void* data) { tensors_.at(value).data = data; }
  // Runs all nodes.  Throws Error, or OrtFailure with a status of status_message.
  void run();
  const Tensor& tensor(size_t value) const { return tensors_.at(value); }
  // The memory of a value that a run has computed, for the caller; an empty block if that is bound.
  Block take(size_t value);

 private:
  void drop(Tensor* tensor);

  std::shared_ptr<const Executable> executable_;
  std::vector<Tensor> tensors_;
  std::atomic<bool> runs_{false};
};

// What a status that was made here says; it is released.
std::string status_message(OrtStatus* status);

}  // namespace onnxfuse

#endif  // ONNXFUSE_EXECUTABLE_H_
