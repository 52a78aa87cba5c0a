#include "fused_elementwise.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "executor.h"
#include "plan.h"
#include "plan_cache.h"
#include "program.h"
#include "shape_inference.h"

namespace onnxfuse {
namespace {

std::atomic<const OrtApi*> g_api{nullptr};

// A failed call of the ORT API; owns its status until release().
class OrtFailure {
 public:
  explicit OrtFailure(OrtStatus* status) : status_(status) {}
  OrtStatus* status() const { return status_; }

 private:
  OrtStatus* status_;
};

void check(OrtStatus* status) {
  if (status != nullptr) throw OrtFailure(status);
}

// Runs `body` and turns every exception into a status: none may cross the C ABI.
template <class Body>
OrtStatus* guarded(const OrtApi* api, OrtErrorCode code, const std::string& where, const Body& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const OrtFailure& failure) {
    return failure.status();
  } catch (const std::exception& error) {
    return api->CreateStatus(code, (where + error.what()).c_str());
  } catch (...) {
    return api->CreateStatus(ORT_FAIL, "onnxfuse: unknown error");
  }
}

class Error : public std::exception {
 public:
  explicit Error(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

// A string that the ORT API copies to the caller in two calls, the first for its size (which counts the final 0).
template <class Get>
std::string read_string(const Get& get) {
  size_t size = 0;
  check(get(nullptr, &size));
  std::string text(size, '\0');
  check(get(text.data(), &size));
  if (!text.empty() && text.back() == '\0') text.pop_back();
  return text;
}

// Memory for one run, aligned to a cache line; small ones are on the stack of the caller.
class Scratch {
 public:
  explicit Scratch(size_t bytes) {
    if (bytes <= sizeof(inline_)) {
      data_ = inline_;
    } else {
      heap_.reset(static_cast<char*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)));
      if (heap_ == nullptr) throw Error("out of memory for " + std::to_string(bytes) + " bytes of intermediate values");
      data_ = heap_.get();
    }
  }
  char* data() const { return data_; }

 private:
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  alignas(64) char inline_[4096];
  std::unique_ptr<char, Free> heap_;
  char* data_;
};

struct ParallelContext {
  const OrtApi* api;
  const OrtKernelContext* context;
};

void parallel_for(void* opaque, void (*function)(void*, size_t), size_t total, void* data) {
  const auto& parallel = *static_cast<const ParallelContext*>(opaque);
  check(parallel.api->KernelContext_ParallelFor(parallel.context, function, total, 0, data));
}

// A Program and the plans that were made for it last.
class ProgramKernel {
 public:
  ProgramKernel(const OrtApi* api, Program program) : api_(api), program_(std::move(program)) {}

  const Program& program() const { return program_; }

  bool takes(const std::vector<int>& input_types) const {
    for (size_t i = 0; i < input_types.size(); ++i) {
      if (input_types[i] != info(program_.values[i].type).onnx) return false;
    }
    return true;
  }

  void compute(OrtKernelContext* context, const PlanKey& key, std::vector<const void*> inputs) {
    std::shared_ptr<const Plan> plan = find_plan(key);
    std::vector<void*> outputs(program_.outputs.size());
    for (size_t o = 0; o < outputs.size(); ++o) {
      const Shape& shape = plan->output_shapes[o];
      OrtValue* value = nullptr;
      check(api_->KernelContext_GetOutput(context, o, shape.dims.data(), static_cast<size_t>(shape.rank), &value));
      if (value == nullptr) throw Error("output " + std::to_string(o) + " is missing");
      check(api_->GetTensorMutableData(value, &outputs[o]));
    }
    plan = resolve_aliasing(std::move(plan), &inputs, outputs);
    const auto copies = copy_shared_inputs(*plan, &inputs, outputs);
    const Scratch scratch(plan->scratch_bytes);
    ParallelContext parallel{api_, context};
    run_plan(program_, *plan, {inputs.data(), outputs.data(), scratch.data()}, parallel_for, &parallel);
  }

 private:
  std::shared_ptr<const Plan> find_plan(const PlanKey& key) {
    if (auto plan = cache_.find(key)) return plan;
    std::string error;
    auto plan = make_plan(program_, key, &error);
    if (plan == nullptr) throw Error(error);
    cache_.add(plan);
    return plan;
  }

  size_t input_bytes(const Plan& plan, size_t i) const {
    int64_t count = 0;
    element_count(plan.key.shapes[i], &count);
    return static_cast<size_t>(count) * storage_size(program_.values[i].type);
  }

  size_t output_bytes(const Plan& plan, size_t o) const {
    int64_t count = 0;
    element_count(plan.output_shapes[o], &count);
    return static_cast<size_t>(count) * storage_size(program_.values[program_.outputs[o]].type);
  }

  bool overlap(const Plan& plan, size_t i, const void* input, size_t o, const void* output) const {
    const auto a = reinterpret_cast<uintptr_t>(input);
    const auto b = reinterpret_cast<uintptr_t>(output);
    return a < b + output_bytes(plan, o) && b < a + input_bytes(plan, i);
  }

  // Whether tiles can run while output `o` shares the memory of input `i`, element for element: one stage has both, and
  // a tile reads its part of the input in place.
  bool shares_in_place(const Plan& plan, size_t i, const void* input, size_t o, const void* output) const {
    const InputUse& read = plan.inputs[i];
    const OutputUse& written = plan.outputs[o];
    return input == output && read.stages == 1 && read.whole && read.stage == written.stage &&
           storage_size(program_.values[i].type) == storage_size(program_.values[program_.outputs[o]].type);
  }

  // The plan for outputs that share memory with inputs, as GetMayInplace allows ORT to arrange.
  std::shared_ptr<const Plan> resolve_aliasing(std::shared_ptr<const Plan> plan, std::vector<const void*>* inputs,
                                               const std::vector<void*>& outputs) {
    while (true) {
      uint64_t aliased = plan->key.aliased;
      uint64_t deferred = plan->key.deferred;
      for (size_t o = 0; o < outputs.size(); ++o) {
        for (size_t i = 0; i < inputs->size(); ++i) {
          const InputUse& read = plan->inputs[i];
          if (read.stages == 0 || !overlap(*plan, i, (*inputs)[i], o, outputs[o])) continue;
          if (!shares_in_place(*plan, i, (*inputs)[i], o, outputs[o])) continue;
          aliased |= uint64_t{1} << o;
          if (plan->outputs[o].first_write < read.last_read) deferred |= uint64_t{1} << o;
        }
      }
      if (aliased == plan->key.aliased && deferred == plan->key.deferred) return plan;
      plan = find_plan({plan->key.shapes, aliased, deferred});
    }
  }

  // Where sharing is not element for element, the input is copied first.
  std::vector<std::unique_ptr<Scratch>> copy_shared_inputs(const Plan& plan, std::vector<const void*>* inputs,
                                                           const std::vector<void*>& outputs) const {
    std::vector<std::unique_ptr<Scratch>> copies;
    for (size_t i = 0; i < inputs->size(); ++i) {
      const void* const input = (*inputs)[i];
      for (size_t o = 0; o < outputs.size(); ++o) {
        if (plan.inputs[i].stages == 0 || !overlap(plan, i, input, o, outputs[o])) continue;
        if (shares_in_place(plan, i, input, o, outputs[o])) continue;
        copies.push_back(std::make_unique<Scratch>(input_bytes(plan, i)));
        std::memcpy(copies.back()->data(), input, input_bytes(plan, i));
        (*inputs)[i] = copies.back()->data();
        break;
      }
    }
    return copies;
  }

  const OrtApi* api_;
  Program program_;
  PlanCache cache_;
};

class FusedElementwise {
 public:
  FusedElementwise(const OrtApi* api, const OrtKernelInfo* info, const std::string& text) : api_(api) {
    name_ = node_name(api, info);
    Program program;
    std::string error;
    if (!parse_program(text, &program, &error)) throw Error("the program attribute is not valid: " + error);
    size_t inputs = 0;
    size_t outputs = 0;
    check(api->KernelInfo_GetInputCount(info, &inputs));
    check(api->KernelInfo_GetOutputCount(info, &outputs));
    if (inputs != program.input_count || outputs != program.outputs.size()) {
      throw Error("the node has " + std::to_string(inputs) + " inputs and " + std::to_string(outputs) +
                  " outputs, but its program has " + std::to_string(program.input_count) + " and " +
                  std::to_string(program.outputs.size()));
    }
    widened_ = std::make_unique<ProgramKernel>(api, widen_half(program));
    as_written_ = std::make_unique<ProgramKernel>(api, std::move(program));
  }

  static std::string node_name(const OrtApi* api, const OrtKernelInfo* info) {
    return read_string([&](char* out, size_t* size) { return api->KernelInfo_GetNodeName(info, out, size); });
  }

  const OrtApi* api() const { return api_; }
  const std::string& name() const { return name_; }

  void compute(OrtKernelContext* context) {
    const size_t count = as_written_->program().input_count;
    PlanKey key;
    key.shapes.resize(count);
    std::vector<int> types(count);
    std::vector<const void*> inputs(count);
    for (size_t i = 0; i < count; ++i) types[i] = read_input(context, i, &key.shapes[i], &inputs[i]);
    if (as_written_->takes(types)) return as_written_->compute(context, key, std::move(inputs));
    if (widened_->takes(types)) return widened_->compute(context, key, std::move(inputs));
    size_t wrong = 0;
    while (types[wrong] == info(as_written_->program().values[wrong].type).onnx) ++wrong;
    throw Error("input " + std::to_string(wrong) + " has ONNX element type " + std::to_string(types[wrong]) +
                ", but the program expects " + info(as_written_->program().values[wrong].type).name);
  }

 private:
  // Returns the ONNX element type.
  int read_input(OrtKernelContext* context, size_t i, Shape* shape, const void** data) const {
    const OrtValue* value = nullptr;
    check(api_->KernelContext_GetInput(context, i, &value));
    if (value == nullptr) throw Error("input " + std::to_string(i) + " is missing");
    OrtTensorTypeAndShapeInfo* info = nullptr;
    check(api_->GetTensorTypeAndShape(value, &info));
    const auto release = [this](OrtTensorTypeAndShapeInfo* p) { api_->ReleaseTensorTypeAndShapeInfo(p); };
    const std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(release)> owner(info, release);
    int type = 0;
    size_t rank = 0;
    check(api_->GetTensorElementType(info, &type));
    check(api_->GetDimensionsCount(info, &rank));
    if (rank > kMaxRank) throw Error("input " + std::to_string(i) + " has more than 16 dimensions");
    shape->rank = static_cast<int>(rank);
    check(api_->GetDimensions(info, shape->dims.data(), rank));
    void* memory = nullptr;
    check(api_->GetTensorMutableData(const_cast<OrtValue*>(value), &memory));
    *data = memory;
    return type;
  }

  const OrtApi* api_;
  std::string name_;
  std::unique_ptr<ProgramKernel> as_written_;
  std::unique_ptr<ProgramKernel> widened_;  // for a node whose float16 tensors ORT has made float
};

std::string place(const std::string& node) { return "onnxfuse::FusedElementwise node '" + node + "': "; }

OrtStatus* create_kernel(const OrtCustomOp*, const OrtApi* api, const OrtKernelInfo* info, void** kernel) {
  std::string name;
  OrtStatus* status = guarded(api, ORT_FAIL, "", [&] { name = FusedElementwise::node_name(api, info); });
  if (status != nullptr) return status;
  return guarded(api, ORT_INVALID_GRAPH, place(name), [&] {
    const std::string text = read_string([&](char* out, size_t* size) {
      return api->KernelInfoGetAttribute_string(info, "program", out, size);
    });
    *kernel = new FusedElementwise(api, info, text);
  });
}

OrtStatus* compute(void* opaque, OrtKernelContext* context) {
  auto* kernel = static_cast<FusedElementwise*>(opaque);
  return guarded(kernel->api(), ORT_INVALID_ARGUMENT, place(kernel->name()), [&] { kernel->compute(context); });
}

OrtStatus* infer_shapes(const OrtCustomOp*, OrtShapeInferContext* context) {
  const OrtApi* api = g_api.load();
  return guarded(api, ORT_INVALID_GRAPH, "onnxfuse::FusedElementwise: ", [&] {
    std::string error;
    OrtStatus* status = nullptr;
    if (!infer_output_shapes(*api, context, &status, &error)) throw Error(error);
    check(status);
  });
}

// ORT may give output `o` the memory of input `i`, if it is of the same size and no longer needed, for each of these.
constexpr int kInplaceInputs = 8;
constexpr int kInplaceOutputs = 4;

size_t may_inplace(int** inputs, int** outputs) {
  constexpr size_t count = kInplaceInputs * kInplaceOutputs;
  *inputs = static_cast<int*>(std::malloc(count * sizeof(int)));
  *outputs = static_cast<int*>(std::malloc(count * sizeof(int)));
  if (*inputs == nullptr || *outputs == nullptr) return 0;
  for (int o = 0; o < kInplaceOutputs; ++o) {
    for (int i = 0; i < kInplaceInputs; ++i) {
      (*inputs)[o * kInplaceInputs + i] = i;
      (*outputs)[o * kInplaceInputs + i] = o;
    }
  }
  return count;
}

void release_inplace(int* inputs, int* outputs) {
  std::free(inputs);
  std::free(outputs);
}

struct NamedOp : OrtCustomOp {
  const char* name;
};

NamedOp make_op(const char* name) {
  NamedOp op{};
  op.name = name;
  op.version = kOrtApiVersion;
  op.GetName = [](const OrtCustomOp* self) { return static_cast<const NamedOp*>(self)->name; };
  op.GetExecutionProviderType = [](const OrtCustomOp*) { return "CPUExecutionProvider"; };
  op.GetInputType = [](const OrtCustomOp*, size_t) { return 0; };
  op.GetInputTypeCount = [](const OrtCustomOp*) { return size_t{1}; };
  op.GetOutputType = op.GetInputType;
  op.GetOutputTypeCount = op.GetInputTypeCount;
  op.KernelDestroy = [](void* kernel) { delete static_cast<FusedElementwise*>(kernel); };
  op.GetInputCharacteristic = [](const OrtCustomOp*, size_t) { return INPUT_OUTPUT_VARIADIC; };
  op.GetOutputCharacteristic = op.GetInputCharacteristic;
  op.GetInputMemoryType = [](const OrtCustomOp*, size_t) { return OrtMemTypeDefault; };
  op.GetVariadicInputMinArity = [](const OrtCustomOp*) { return 0; };
  op.GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 0; };
  op.GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
  op.GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 0; };
  op.CreateKernelV2 = create_kernel;
  op.KernelComputeV2 = compute;
  op.InferOutputShapeFn = infer_shapes;
  op.GetStartVersion = [](const OrtCustomOp*) { return 1; };
  op.GetEndVersion = [](const OrtCustomOp*) { return INT32_MAX; };
  op.GetMayInplace = may_inplace;
  op.ReleaseMayInplace = release_inplace;
  op.GetAliasMap = [](int**, int**) { return size_t{0}; };
  op.ReleaseAliasMap = [](int*, int*) {};
  return op;
}

}  // namespace

const std::vector<const OrtCustomOp*>& fused_elementwise() {
  static const std::vector<NamedOp> ops = [] {
    std::vector<NamedOp> made;
    for (const char* name : {ONNXFUSE_FUSED_OPS}) made.push_back(make_op(name));
    return made;
  }();
  static const std::vector<const OrtCustomOp*> pointers = [] {
    std::vector<const OrtCustomOp*> found;
    for (const NamedOp& op : ops) found.push_back(&op);
    return found;
  }();
  return pointers;
}

void set_api(const OrtApi* api) { g_api.store(api); }

}  // namespace onnxfuse
