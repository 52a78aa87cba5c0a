#include "executable/executable.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#include "operators/families.h"
#include "operators/operator_names.h"
#include "ort/custom_op.h"
#include "ort/node.h"
#include "ort/ort_call.h"
#include "platform/cache_lines.h"
#include "platform/error.h"
#include "platform/forks.h"
#include "program/dtype.h"
#include "runtime/workspace.h"

namespace onnxfuse {
namespace {

// --- ONNX Runtime's C API, as far as nodes on the CPU call it ---

constexpr size_t kMostThreads = 1024;

// One node of one run: what OrtKernelContext is here.
struct NodeRun {
  const Executable* executable;
  const NodeInfo* info;
  Tensor* tensors;
};

struct Status {
  std::string message;
};

// What there is if there is no memory for another.
OrtStatus* no_memory() {
  static char status;
  return reinterpret_cast<OrtStatus*>(&status);
}

OrtStatus* make_status(OrtErrorCode, const char* message) {
  try {
    return reinterpret_cast<OrtStatus*>(new Status{message});
  } catch (const std::bad_alloc&) {
    return no_memory();
  }
}

void release_status(OrtStatus* status) {
  if (status != no_memory()) delete reinterpret_cast<Status*>(status);
}

const NodeInfo& node(const OrtKernelInfo* info) { return *reinterpret_cast<const NodeInfo*>(info); }
const NodeRun& node_run(const OrtKernelContext* context) { return *reinterpret_cast<const NodeRun*>(context); }
Tensor& tensor(const OrtValue* value) { return *const_cast<Tensor*>(reinterpret_cast<const Tensor*>(value)); }
const Tensor& tensor(const OrtTensorTypeAndShapeInfo* info) { return *reinterpret_cast<const Tensor*>(info); }

OrtStatus* no_attribute() { return make_status(ORT_FAIL, "there is no such attribute"); }

const Attribute* find_attribute(const OrtKernelInfo* info, const char* name, bool is_text, bool is_list) {
  for (const Attribute& attribute : node(info).attributes) {
    if (attribute.name == name && attribute.is_text == is_text && attribute.is_list == is_list) return &attribute;
  }
  return nullptr;
}

// The first call tells the size, which counts the final 0.
OrtStatus* copy_text(const std::string& text, char* out, size_t* size) {
  if (out != nullptr) std::memcpy(out, text.c_str(), std::min(*size, text.size() + 1));
  *size = text.size() + 1;
  return nullptr;
}

// Memory that a run needs is kept by the thread from run to run; its block is described before it.
void* allocate(OrtAllocator*, size_t bytes) {
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

void release(OrtAllocator*, void* memory) {
  if (memory == nullptr) return;
  auto* const described = reinterpret_cast<Workspace*>(static_cast<char*>(memory) - kCacheLine);
  const Workspace given_back(std::move(*described));
}

size_t bytes_of(const Shape& shape, int onnx_type) {
  const auto* const type = std::find_if(kDTypes, kDTypes + kDTypeCount,
                                        [&](const DTypeInfo& known) { return known.onnx == onnx_type; });
  return onnxfuse::bytes_of(shape, static_cast<DType>(type - kDTypes));
}

// Memory for an output, unless the caller has bound some.
void place(Tensor* output, BlockPool* memory, const int64_t* dims, size_t rank) {
  Shape shape;
  if (rank > kMaxRank) throw Error("an output has more than 16 dimensions");
  shape.rank = static_cast<int>(rank);
  std::copy_n(dims, rank, shape.dims.begin());
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

OrtStatus* get_output(OrtKernelContext* context, size_t index, const int64_t* dims, size_t rank, OrtValue** out);

const OrtApi& own_api() {
  static Once<OrtApi> api;
  return api.get([] {
    static OrtAllocator allocator{kOrtApiVersion, allocate, release};
    OrtApi own{};
    own.CreateStatus = make_status;
    own.ReleaseStatus = release_status;
    own.GetTensorMutableData = [](OrtValue* value, void** out) -> OrtStatus* {
      *out = tensor(value).data;
      return nullptr;
    };
    own.GetTensorTypeAndShape = [](const OrtValue* value, OrtTensorTypeAndShapeInfo** out) -> OrtStatus* {
      *out = reinterpret_cast<OrtTensorTypeAndShapeInfo*>(&tensor(value));
      return nullptr;
    };
    own.ReleaseTensorTypeAndShapeInfo = [](OrtTensorTypeAndShapeInfo*) {};
    own.GetTensorElementType = [](const OrtTensorTypeAndShapeInfo* info, int* out) -> OrtStatus* {
      *out = tensor(info).value->type;
      return nullptr;
    };
    own.GetDimensionsCount = [](const OrtTensorTypeAndShapeInfo* info, size_t* out) -> OrtStatus* {
      *out = static_cast<size_t>(tensor(info).shape.rank);
      return nullptr;
    };
    own.GetDimensions = [](const OrtTensorTypeAndShapeInfo* info, int64_t* dims, size_t count) -> OrtStatus* {
      std::copy_n(tensor(info).shape.dims.begin(), count, dims);
      return nullptr;
    };
    own.KernelInfoGetAttribute_int64 = [](const OrtKernelInfo* info, const char* name, int64_t* out) -> OrtStatus* {
      const Attribute* const found = find_attribute(info, name, false, false);
      if (found == nullptr) return no_attribute();
      *out = found->numbers[0];
      return nullptr;
    };
    own.KernelInfoGetAttribute_string = [](const OrtKernelInfo* info, const char* name, char* out, size_t* size) {
      const Attribute* const found = find_attribute(info, name, true, false);
      return found == nullptr ? no_attribute() : copy_text(found->text, out, size);
    };
    own.KernelInfoGetAttributeArray_int64 = [](const OrtKernelInfo* info, const char* name, int64_t* out,
                                               size_t* count) -> OrtStatus* {
      const Attribute* const found = find_attribute(info, name, false, true);
      if (found == nullptr) return no_attribute();
      if (out != nullptr) std::copy_n(found->numbers.begin(), std::min(*count, found->numbers.size()), out);
      *count = found->numbers.size();
      return nullptr;
    };
    own.KernelInfo_GetInputCount = [](const OrtKernelInfo* info, size_t* out) -> OrtStatus* {
      *out = node(info).inputs.size();
      return nullptr;
    };
    own.KernelInfo_GetOutputCount = [](const OrtKernelInfo* info, size_t* out) -> OrtStatus* {
      *out = node(info).outputs.size();
      return nullptr;
    };
    own.KernelInfo_GetNodeName = [](const OrtKernelInfo* info, char* out, size_t* size) {
      return copy_text(node(info).name, out, size);
    };
    own.KernelInfo_GetLogger = [](const OrtKernelInfo*, const OrtLogger**) {
      return make_status(ORT_FAIL, "there is no logger");
    };
    own.KernelInfoGetAllocator = [](const OrtKernelInfo*, OrtMemType, OrtAllocator** out) -> OrtStatus* {
      *out = &allocator;
      return nullptr;
    };
    own.ReleaseAllocator = [](OrtAllocator*) {};
    own.KernelContext_GetInput = [](const OrtKernelContext* context, size_t index,
                                    const OrtValue** out) -> OrtStatus* {
      const NodeRun& run = node_run(context);
      const int64_t value = run.info->inputs[index];
      *out = value < 0 ? nullptr : reinterpret_cast<const OrtValue*>(&run.tensors[value]);
      if (value < 0 || run.tensors[value].data != nullptr) return nullptr;
      return make_status(ORT_FAIL, ("there is no '" + run.tensors[value].value->name + "' yet").c_str());
    };
    own.KernelContext_GetOutput = get_output;
    own.KernelContext_ParallelFor = [](const OrtKernelContext* context, void (*function)(void*, size_t), size_t total,
                                       size_t, void* data) -> OrtStatus* {
      node_run(context).executable->threads().run(function, total, data);
      return nullptr;
    };
    return own;
  });
}

OrtStatus* get_output(OrtKernelContext* context, size_t index, const int64_t* dims, size_t rank, OrtValue** out) {
  const NodeRun& run = node_run(context);
  Tensor* const output = &run.tensors[run.info->outputs[index]];
  return guarded(&own_api(), ORT_FAIL, "", [&] {
    place(output, &run.executable->memory(), dims, rank);
    *out = reinterpret_cast<OrtValue*>(output);
  });
}

// --- what a model's nodes are made of ---

// The operator for the CPU of the family that this name is of; null if the library has none.
const OrtCustomOp* find_operator(std::string_view name) {
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
  info.name = node.name;
  info.inputs = checked(node.inputs, node.input_count, -1, value_count);
  info.outputs = checked(node.outputs, node.output_count, 0, value_count);
  for (size_t i = 0; i < node.attribute_count; ++i) {
    const onnxfuse_attribute& own = node.attributes[i];
    if (own.text == nullptr && own.count < -1) throw Error("the attribute " + std::string(own.name) + " has no length");
    Attribute attribute{own.name, own.text != nullptr, own.text == nullptr && own.count >= 0, {}, {}};
    if (attribute.is_text) attribute.text.assign(own.text, own.size);
    else attribute.numbers.assign(own.numbers, own.numbers + (own.count < 0 ? 1 : own.count));
    info.attributes.push_back(std::move(attribute));
  }
  return info;
}

}  // namespace

std::string status_message(OrtStatus* status) {
  if (status == no_memory()) return "there is no memory";
  std::string message = std::move(reinterpret_cast<Status*>(status)->message);
  release_status(status);
  return message;
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
  steps_.reserve(node_count);  // kernels may refer to what describes their nodes
  for (size_t i = 0; i < node_count; ++i) {
    const OrtCustomOp* const op = find_operator(nodes[i].op);
    if (op == nullptr) throw Error("the library has no operator " + std::string(nodes[i].op) + " for the CPU");
    Step& step = steps_.emplace_back(Step{describe(nodes[i], value_count), op, {nullptr, op->KernelDestroy}, {}});
    void* kernel = nullptr;
    check(op->CreateKernelV2(op, &own_api(), reinterpret_cast<const OrtKernelInfo*>(&step.info), &kernel));
    step.kernel.reset(kernel);
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
    NodeRun run{executable_.get(), &step.info, tensors_.data()};
    check(step.op->KernelComputeV2(step.kernel.get(), reinterpret_cast<OrtKernelContext*>(&run)));
    for (const size_t value : step.last_reads) {
      if (!tensors_[value].bound) drop(&tensors_[value]);
    }
  }
}

}  // namespace onnxfuse
