#include "executable/executable.h"

#include <algorithm>
#include <new>
#include <string_view>
#include <utility>

#include "figures/programs.h"
#include "operators/families.h"
#include "operators/operator_names.h"
#include "ort/custom_op.h"
#include "platform/cache_lines.h"
#include "platform/error.h"
#include "platform/forks.h"
#include "program/dtype.h"
#include "runtime/node.h"
#include "runtime/workspace.h"

namespace onnxfuse {
namespace {

constexpr size_t kMostThreads = 1024;

// Memory that a run needs is kept by the thread from run to run; its block is described before it.
void* allocate(void*, size_t bytes) {
  static_assert(sizeof(Workspace) <= kCacheLine);
  if (bytes > SIZE_MAX - kCacheLine) return nullptr;
  try {
    Workspace workspace(bytes + kCacheLine);
    char* const memory = static_cast<char*>(workspace.data());
    new (memory) Workspace(std::move(workspace));
    return memory + kCacheLine;
  } catch (const std::exception&) {
    return nullptr;
  }
}

void release(void*, void* memory) {
  if (memory == nullptr) return;
  auto* const described = reinterpret_cast<Workspace*>(static_cast<char*>(memory) - kCacheLine);
  const Workspace given_back(std::move(*described));
}

void run_in_parallel(void* threads, void (*function)(void*, size_t), size_t total, void* data) {
  static_cast<ThreadPool*>(threads)->run(function, total, data);
}

size_t bytes_of(const Shape& shape, int onnx_type) {
  const auto* const type = std::find_if(kDTypes, kDTypes + kDTypeCount,
                                        [&](const DTypeInfo& known) { return known.onnx == onnx_type; });
  return onnxfuse::bytes_of(shape, static_cast<DType>(type - kDTypes));
}

// Memory for an output, unless the caller has bound some.
void place(Tensor* output, BlockPool* memory, const Shape& shape) {
  if (output->bound) {
    if (shape == output->shape) return;
    throw Error("'" + output->value->name + "' has the shape " + to_string(shape) + ", and the array for it " +
                to_string(output->shape));
  }
  const size_t bytes = bytes_of(shape, output->value->type);
  output->data = nullptr;
  if (bytes > output->block.bytes || output->block.memory == nullptr) {
    memory->give_back(std::move(output->block));
    output->block = {};
    output->block = memory->take(bytes);
  }
  output->shape = shape;
  output->data = output->block.memory.get();
}

// Runs `body`; messages of what it throws begin with the place.
template <class Body>
void in_place(const std::string& where, const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    throw Error(where + error.what(), error.code());
  } catch (const std::exception& error) {  // of memory
    throw Error(where + error.what(), ErrorCode::Fail);
  }
}

// One node of one run.
class NodeRun final : public NodeContext {
 public:
  NodeRun(const Executable& executable, const NodeInfo& info, Tensor* tensors)
      : executable_(executable),
        info_(info),
        tensors_(tensors),
        host_{&executable.threads(), run_in_parallel, allocate, release} {}

  void read_inputs(NodeInputs* inputs) const override {
    for (size_t i = 0; i < inputs->types.size(); ++i) {
      const int64_t value = info_.inputs[i];
      if (value < 0) throw Error("input " + std::to_string(i) + " is missing");
      const Tensor& tensor = tensors_[value];
      if (tensor.data == nullptr) throw Error("there is no '" + tensor.value->name + "' yet");
      inputs->types[i] = tensor.value->type;
      inputs->key.shapes[i] = tensor.shape;
      inputs->data[i] = tensor.data;
    }
  }

  void* output(size_t o, const Shape& shape, int* type) override {
    Tensor& tensor = tensors_[info_.outputs[o]];
    place(&tensor, &executable_.memory(), shape);
    *type = tensor.value->type;
    return tensor.data;
  }

  const Host& host() const override { return host_; }

 private:
  const Executable& executable_;
  const NodeInfo& info_;
  Tensor* const tensors_;
  const Host host_;
};

// The operator of the family that this name is of; null if the library has none.
const NamedOp* find_operator(std::string_view name) {
  static Once<std::vector<NamedOp>> operators;
  const std::vector<NamedOp>& known = operators.get([] {
    std::vector<NamedOp> made;
    for (const OpFamily& family : all_families()) {
      if (!family.on_gpu) made.push_back(family.make(family.name));
    }
    return made;
  });
  const std::string_view family = split_name(name).family;
  const auto found = std::find_if(known.begin(), known.end(), [&](const NamedOp& op) { return family == op.name; });
  return found == known.end() ? nullptr : &*found;
}

std::vector<int64_t> checked(const int64_t* values, size_t count, int64_t least, size_t known) {
  std::vector<int64_t> result(values, values + count);
  for (const int64_t value : result) {
    if (value < least || value >= static_cast<int64_t>(known)) throw Error("a node has a value that is not there");
  }
  return result;
}

size_t checked_threads(size_t threads) {
  if (threads < 1 || threads > kMostThreads) throw Error(std::to_string(threads) + " threads cannot run a model");
  return threads;
}

NodeInfo describe(const onnxfuse_node& node, size_t value_count) {
  NodeInfo info;
  info.own_name = node.name;
  info.inputs = checked(node.inputs, node.input_count, -1, value_count);
  info.outputs = checked(node.outputs, node.output_count, 0, value_count);
  for (size_t i = 0; i < node.attribute_count; ++i) {
    const onnxfuse_attribute& own = node.attributes[i];
    if (own.text == nullptr && own.count < -1) throw Error("the attribute " + std::string(own.name) + " has no length");
    Attribute attribute{own.name, own.text != nullptr, own.text == nullptr && own.count >= 0, {}, {}};
    if (attribute.is_text) attribute.text.assign(own.text, own.size);
    else attribute.numbers.assign(own.numbers, own.numbers + (own.count < 0 ? 1 : own.count));
    info.own_attributes.push_back(std::move(attribute));
  }
  return info;
}

}  // namespace

const Attribute* NodeInfo::find(const char* wanted, bool is_text, bool is_list) const {
  for (const Attribute& attribute : own_attributes) {
    if (attribute.name == wanted && attribute.is_text == is_text && attribute.is_list == is_list) return &attribute;
  }
  return nullptr;
}

AttributeSource NodeInfo::attributes() const {
  AttributeSource source;
  source.text = [this](const char* wanted, std::string* text) {
    const Attribute* const found = find(wanted, true, false);
    if (found != nullptr) *text = found->text;
    return found != nullptr;
  };
  source.number = [this](const char* wanted, int64_t* number) {
    const Attribute* const found = find(wanted, false, false);
    if (found != nullptr) *number = found->numbers[0];
    return found != nullptr;
  };
  source.numbers = [this](const char* wanted, std::vector<int64_t>* numbers) {
    const Attribute* const found = find(wanted, false, true);
    if (found != nullptr) *numbers = found->numbers;
    return found != nullptr;
  };
  return source;
}

Executable::Executable(const onnxfuse_node* nodes, size_t node_count, const onnxfuse_value* values, size_t value_count,
                       size_t threads)
    : threads_(ThreadPool::of(checked_threads(threads))) {
  for (size_t i = 0; i < value_count; ++i) {
    const bool is_known = std::any_of(kDTypes, kDTypes + kDTypeCount,
                                      [&](const DTypeInfo& known) { return known.onnx == values[i].type; });
    if (!is_known) throw Error("'" + std::string(values[i].name) + "' is of a type that fused nodes do not take");
    values_.push_back({values[i].name, values[i].type});
  }
  steps_.reserve(node_count);
  for (size_t i = 0; i < node_count; ++i) {
    const NamedOp* const op = find_operator(nodes[i].op);
    if (op == nullptr) throw Error("the library has no operator " + std::string(nodes[i].op) + " for the CPU");
    NodeInfo info = describe(nodes[i], value_count);
    std::unique_ptr<AnyNode> node;
    in_place(place(op->name, info.name()), [&] { node = op->make_node(info); });
    steps_.push_back(Step{std::move(info), std::move(node), {}});
  }
  check_order();
  find_last_reads(values);
}

// Each value is computed once, before it is read: a node may give up the memory of what it computes.
void Executable::check_order() const {
  std::vector<size_t> computed(values_.size(), SIZE_MAX);  // by which step
  for (size_t s = 0; s < steps_.size(); ++s) {
    for (const int64_t value : steps_[s].info.outputs) {
      size_t& by = computed[static_cast<size_t>(value)];
      if (by != SIZE_MAX) throw Error("'" + values_[static_cast<size_t>(value)].name + "' is computed twice");
      by = s;
    }
  }
  for (size_t s = 0; s < steps_.size(); ++s) {
    for (const int64_t value : steps_[s].info.inputs) {
      if (value < 0 || computed[static_cast<size_t>(value)] == SIZE_MAX || computed[static_cast<size_t>(value)] < s) continue;
      throw Error("'" + values_[static_cast<size_t>(value)].name + "' is read before it is computed");
    }
  }
}

void Executable::find_last_reads(const onnxfuse_value* values) {
  constexpr size_t never = SIZE_MAX;
  std::vector<size_t> last(values_.size(), never);  // a step that reads the value, or computes it in vain
  std::vector<bool> is_computed(values_.size());
  for (size_t s = 0; s < steps_.size(); ++s) {
    for (const int64_t value : steps_[s].info.inputs) {
      if (value >= 0) last[static_cast<size_t>(value)] = s;
    }
    for (const int64_t value : steps_[s].info.outputs) {
      is_computed[static_cast<size_t>(value)] = true;
      last[static_cast<size_t>(value)] = s;
    }
  }
  for (size_t value = 0; value < last.size(); ++value) {
    if (is_computed[value] && values[value].is_output == 0) steps_[last[value]].last_reads.push_back(value);
  }
}

Binding::Binding(std::shared_ptr<const Executable> executable)
    : executable_(std::move(executable)), tensors_(executable_->values().size()) {
  for (size_t i = 0; i < tensors_.size(); ++i) tensors_[i].value = &executable_->values()[i];
}

Binding::~Binding() {
  for (Tensor& tensor : tensors_) drop(&tensor);
}

void Binding::drop(Tensor* tensor) {
  executable_->memory().give_back(std::move(tensor->block));
  tensor->block = {};
  tensor->data = nullptr;
}

// What a thread holds while it uses a binding.
class Binding::Turn {
 public:
  explicit Turn(Binding* binding) : runs_(binding->runs_) {
    if (runs_.exchange(true, std::memory_order_acquire)) throw Error("it is running in another thread");
  }
  ~Turn() { runs_.store(false, std::memory_order_release); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  std::atomic<bool>& runs_;
};

Tensor& Binding::tensor(size_t value) {
  if (value >= tensors_.size()) throw Error("there is no value " + std::to_string(value));
  return tensors_[value];
}

void Binding::bind(size_t value, void* data, const int64_t* dims, size_t rank) {
  Shape shape;
  int64_t count = 0;
  if (rank > kMaxRank) throw Error("a tensor has at most 16 dimensions, not " + std::to_string(rank));
  shape.rank = static_cast<int>(rank);
  std::copy_n(dims, rank, shape.dims.begin());
  if (!element_count(shape, &count)) throw Error("there is no tensor of shape " + to_string(shape));
  const Turn turn(this);
  Tensor& bound = tensor(value);
  drop(&bound);
  bound.data = data;
  bound.shape = shape;
  bound.bound = data != nullptr;
}

void Binding::move(size_t value, void* data) {
  const Turn turn(this);
  Tensor& moved = tensor(value);
  if (!moved.bound || data == nullptr) throw Error("'" + moved.value->name + "' has no memory that could be moved");
  moved.data = data;
}

Shape Binding::result(size_t value, const void** data) {
  const Turn turn(this);
  const Tensor& computed = tensor(value);
  if (computed.data == nullptr) throw Error("nothing has run yet");
  *data = computed.data;
  return computed.shape;
}

Block Binding::take(size_t value) {
  const Turn turn(this);
  Tensor& taken = tensor(value);
  if (taken.bound || taken.data == nullptr) throw Error("there is no memory of '" + taken.value->name + "' to take");
  taken.data = nullptr;
  return std::exchange(taken.block, {});
}

void Binding::run() {
  const Turn turn(this);
  for (const Executable::Step& step : executable_->steps()) {
    NodeRun run(*executable_, step.info, tensors_.data());
    in_place(step.node->place(), [&] { step.node->compute(run); });
    for (const size_t value : step.last_reads) {
      if (!tensors_[value].bound) drop(&tensors_[value]);
    }
  }
}

}  // namespace onnxfuse
