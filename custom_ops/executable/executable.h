// Fused nodes that run one after the other without ONNX Runtime.
#ifndef ONNXFUSE_EXECUTABLE_H_
#define ONNXFUSE_EXECUTABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "executable/block_pool.h"
#include "executable/executable_api.h"
#include "executable/thread_pool.h"
#include "ort/custom_op.h"
#include "program/shape.h"
#include "runtime/node_context.h"

namespace onnxfuse {

struct Attribute {
  std::string name;
  bool is_text;
  bool is_list;
  std::string text;
  std::vector<int64_t> numbers;
};

// A node, and the values that it reads and computes.
struct NodeInfo final : NodeDefinition {
  std::string name() const override { return own_name; }
  size_t input_count() const override { return inputs.size(); }
  size_t output_count() const override { return outputs.size(); }
  AttributeSource attributes() const override;

  std::string own_name;
  std::vector<int64_t> inputs;  // -1 for one that is left out
  std::vector<int64_t> outputs;
  std::vector<Attribute> own_attributes;

 private:
  const Attribute* find(const char* wanted, bool is_text, bool is_list) const;
};

// What a model's nodes are as they run: any number of Bindings may do so at once.
class Executable {
 public:
  struct Value {
    std::string name;
    int type;
  };

  // The nodes in the order in which they run.  `threads` run them together, 1024 at most.  Throws Error.
  Executable(const onnxfuse_node* nodes, size_t node_count, const onnxfuse_value* values, size_t value_count,
             size_t threads);

  struct Step {
    NodeInfo info;
    std::unique_ptr<AnyNode> node;
    std::vector<size_t> last_reads;  // values that no later step reads, and that are not wanted
  };

  const std::vector<Step>& steps() const { return steps_; }
  const std::vector<Value>& values() const { return values_; }
  ThreadPool& threads() const { return *threads_; }
  // What tensors are in that have no memory of the caller's.
  BlockPool& memory() const { return memory_; }

 private:
  void check_order() const;
  void find_last_reads(const onnxfuse_value* values);

  std::vector<Value> values_;
  std::vector<Step> steps_;
  std::shared_ptr<ThreadPool> threads_;
  mutable BlockPool memory_;
};

// A tensor in memory of the caller's or of the executable's.
struct Tensor {
  const Executable::Value* value = nullptr;
  Shape shape;
  void* data = nullptr;  // null before it is bound or computed
  bool bound = false;
  Block block;
};

// The tensors of one run of an executable, and of those after it.  One thread at a time may use them: functions throw Error
// while another does, and for a value that there is not.
class Binding {
 public:
  explicit Binding(std::shared_ptr<const Executable> executable);
  ~Binding();
  Binding(const Binding&) = delete;
  Binding& operator=(const Binding&) = delete;

  const std::shared_ptr<const Executable>& executable() const { return executable_; }

  // Memory of the caller for a value: an input, which is read, or an output, which must come to have this shape.  An output
  // with none gets some of the executable's.  Throws Error for sizes that no tensor has.
  void bind(size_t value, void* data, const int64_t* dims, size_t rank);
  // Other memory for a value that has been bound, whose shape stays.
  void move(size_t value, void* data);
  // Runs all nodes.  Throws Error.
  void run();
  // The shape of a value that a run has computed, or that is bound, and its elements.  Throws Error if there are none.
  Shape result(size_t value, const void** data);
  // The memory of a value that a run has computed, for the caller.  Throws Error if there is none of the executable's.
  Block take(size_t value);

 private:
  class Turn;

  Tensor& tensor(size_t value);
  void drop(Tensor* tensor);

  std::shared_ptr<const Executable> executable_;
  std::vector<Tensor> tensors_;
  std::atomic<bool> runs_{false};
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_EXECUTABLE_H_
