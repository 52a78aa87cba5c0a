// Fuzzing of the functions for models without ONNX Runtime: models and calls that nobody should trust, and what comes out.
//
//   fuzz_executable [runs] [seed]
// Memory that is bound has exactly the size of its tensor, so that AddressSanitizer sees one byte too many, and may be that of
// other tensors too.  Results are held against those of a binding whose tensors lie apart.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "executable/executable_api.h"
#include "figures/nhwc_kernels.h"
#include "figures/programs.h"
#include "platform/integers.h"
#include "program/dtype.h"
#include "program/shape.h"
#include "tests/fuzz/fuzz_conv_nodes.h"

namespace {

using namespace onnxfuse;
using fuzz::below;
using fuzz::expect;
using fuzz::one_of;

constexpr int64_t kMostElements = 1 << 14;
constexpr int64_t kChannels = 3;
constexpr int64_t kSize = 8;

// What a value mostly is.
enum class Kind { Tensor, Row, Weights, Matrix, Number, Wide, Integers };

struct Value {
  std::string name;
  Kind kind;
  int32_t type;
  bool is_output = false;
};

struct Node {
  std::string op;
  std::vector<int64_t> inputs;
  std::vector<int64_t> outputs;
  fuzz::Attributes attributes;
};

int32_t onnx_type(DType type) { return info(type).onnx; }

// The sum of two inputs, and the first of them as often as is wanted besides.
std::string sum_program(size_t outputs) {
  std::string text = "onnxfuse 1\ninput f32 broadcast\ninput f32 broadcast\nadd f32 0 1\n";
  for (size_t o = 0; o < outputs; ++o) text += o == 0 ? "output 2\n" : "output 0\n";
  return text;
}

size_t size_of(int32_t onnx) {
  const auto* const type = std::find_if(kDTypes, kDTypes + kDTypeCount, [&](const DTypeInfo& t) { return t.onnx == onnx; });
  expect(type != kDTypes + kDTypeCount, "a type that should have been refused");
  return type->size;
}

// Nodes that mostly fit each other, one after the other.
class Model {
 public:
  Model() {
    for (const Kind kind : {Kind::Tensor, Kind::Tensor, Kind::Row, Kind::Weights, Kind::Matrix, Kind::Number, Kind::Integers})
      add(kind);
    given = values.size();
    for (size_t count = below(3) == 0 ? 1 + below(5) : 1; count > 0; --count) add_node();
    for (Value& value : values) value.is_output = value.is_output || below(8) == 0;
    values.back().is_output = true;
    if (below(3) == 0) spoil();
  }

  onnxfuse_executable* create() const {
    std::vector<std::vector<onnxfuse_attribute>> attributes;
    std::vector<onnxfuse_node> described;
    for (const Node& node : nodes) {
      auto& own = attributes.emplace_back();
      for (const auto& [name, text] : node.attributes.texts) {
        own.push_back({name.c_str(), text.data(), text.size(), nullptr, 0});
      }
      for (const auto& [name, number] : node.attributes.numbers) own.push_back({name.c_str(), nullptr, 0, &number, length});
      for (const auto& [name, list] : node.attributes.lists) {
        own.push_back({name.c_str(), nullptr, 0, list.data(), static_cast<int64_t>(list.size())});
      }
      described.push_back({node.op.c_str(), "the node", node.inputs.data(), node.inputs.size(), node.outputs.data(),
                           node.outputs.size(), own.data(), own.size()});
    }
    std::vector<onnxfuse_value> named;
    for (const Value& value : values) named.push_back({value.name.c_str(), value.type, value.is_output ? 1 : 0});
    return onnxfuse_executable_create(described.data(), described.size(), named.data(), named.size(), threads);
  }

  std::vector<Value> values;
  std::vector<Node> nodes;
  size_t given = 0;  // values that no node computes
  size_t threads = below(8) == 0 ? 1 + below(3) : 1;
  int64_t length = -1;  // what says that an attribute is one number

 private:
  int64_t add(Kind kind) {
    const int32_t type = onnx_type(kind == Kind::Integers ? DType::i32 : DType::f32);
    values.push_back({"v" + std::to_string(values.size()), kind, type});
    return static_cast<int64_t>(values.size() - 1);
  }

  // A value of this kind, or for tensors of one that broadcasts to it.
  int64_t find(Kind kind, bool broadcasts = false) const {
    while (true) {
      const size_t value = below(values.size());
      const Kind found = values[value].kind;
      if (found == kind || (broadcasts && (found == Kind::Row || found == Kind::Number))) return static_cast<int64_t>(value);
    }
  }

  void add_node() {
    Node node;
    switch (below(8)) {
      case 0: make_concat(&node); break;
      case 1: make_normalization(&node); break;
      case 2: make_attention(&node); break;
      case 3: make_conv(&node); break;
      case 4: make_matmul(&node); break;
      case 5: make_reduction(&node); break;
      case 6:
        if (below(4) == 0) {
          make_division(&node);
          break;
        }
        [[fallthrough]];
      default: make_elementwise(&node);
    }
    nodes.push_back(std::move(node));
  }

  void make_elementwise(Node* node) {
    static const char* const kOps[] = {"add", "mul", "max", "sub"};
    static const char* const kFunctions[] = {"exp", "relu", "sigmoid", "neg"};
    node->op = "FusedElementwise";
    std::string text = "onnxfuse 1\n";
    size_t count = 1 + below(3);
    for (size_t i = 0; i < count; ++i) {
      text += "input f32 broadcast\n";
      node->inputs.push_back(i == 0 ? find(Kind::Tensor) : find(Kind::Tensor, true));
    }
    std::vector<size_t> wide{0};  // values of the first input's shape
    for (size_t steps = 1 + below(4); steps > 0; --steps) {
      const std::string first = std::to_string(wide[below(wide.size())]);
      if (below(3) == 0) {
        text += std::string(kFunctions[below(4)]) + " f32 " + first + "\n";
      } else {
        text += std::string(kOps[below(4)]) + " f32 " + first + " " + std::to_string(below(count)) + "\n";
      }
      wide.push_back(count++);
    }
    for (size_t outputs = 1 + below(3); outputs > 0; --outputs) {
      text += "output " + std::to_string(wide[below(wide.size())]) + "\n";
      node->outputs.push_back(add(Kind::Tensor));
    }
    node->attributes.texts["program"] = text;
  }

  void make_division(Node* node) {
    node->op = "FusedElementwise";
    node->attributes.texts["program"] = "onnxfuse 1\ninput i32 broadcast\ninput i32 broadcast\ndiv i32 0 1\noutput 2\n";
    node->inputs = {find(Kind::Integers), find(Kind::Integers)};
    node->outputs = {add(Kind::Integers)};
  }

  void make_concat(Node* node) {
    node->op = "FusedNhwcConcat";
    node->inputs = {find(Kind::Tensor), find(Kind::Tensor)};
    node->outputs = {add(Kind::Wide)};
  }

  // The deviations of a sum's rows from their means, scaled.
  void make_normalization(Node* node) {
    node->op = "FusedReduction";
    node->attributes.texts["program"] =
        "onnxfuse 2\ninput f32 broadcast\ninput f32 broadcast\ninput f32 broadcast\nadd f32 0 1\nreduce_mean f32 3 -1\n"
        "sub f32 3 4\nmul f32 5 5\nreduce_mean f32 6 -1\nsqrt f32 7\nreciprocal f32 8\nmul f32 5 9\nmul f32 10 2\noutput 11\n";
    node->inputs = {find(Kind::Tensor), find(Kind::Tensor), find(Kind::Row)};
    node->outputs = {add(Kind::Tensor)};
  }

  // Softmax of a sum, and what is on the way to it.
  void make_reduction(Node* node) {
    node->op = "FusedReduction";
    std::string& text = node->attributes.texts["program"] =
        "onnxfuse 2\ninput f32 broadcast\ninput f32 broadcast\nadd f32 0 1\nreduce_max f32 2 -1\nsub f32 2 3\nexp f32 4\n"
        "reduce_sum f32 5 -1\ndiv f32 5 6\n";
    node->inputs = {find(Kind::Tensor), find(Kind::Tensor, true)};
    for (size_t outputs = 1 + below(3); outputs > 0; --outputs) {
      text += "output " + std::to_string(outputs == 1 ? 7 : one_of({2, 4, 5, 7})) + "\n";
      node->outputs.push_back(add(Kind::Tensor));
    }
  }

  void make_matmul(Node* node) {
    node->op = "FusedMatMul";
    node->attributes.texts["program"] = sum_program(1);
    node->attributes.numbers["columns"] = kSize;
    node->inputs = {find(Kind::Tensor), find(Kind::Matrix), find(Kind::Tensor, true)};
    node->outputs = {add(Kind::Tensor)};
  }

  void make_attention(Node* node) {
    node->op = "FusedAttention";
    node->attributes.lists = {
        {"heads", {2, 2}}, {"input_heads", {2, 2, 2}}, {"first_head", {0, 0, 0}}, {"heads_first", {0, 0, 0, 0}}};
    node->attributes.numbers["scale_bits"] = 0x3f000000;
    node->inputs = {find(Kind::Tensor), find(Kind::Tensor), find(Kind::Tensor)};
    node->outputs = {add(Kind::Tensor)};
  }

  void make_conv(Node* node) {
    node->op = "FusedConv";
    const size_t outputs = 1 + below(2);
    node->attributes.texts = {{"operator", "Conv"}, {"auto_pad", "SAME_UPPER"}, {"program", sum_program(outputs)}};
    node->attributes.lists = {
        {"weight_shape", {kChannels, kChannels, 3}}, {"kernel_shape", {3}}, {"strides", {1}}, {"dilations", {1}}};
    node->attributes.numbers["group"] = 1;
    node->inputs = {find(Kind::Tensor), find(Kind::Weights), find(Kind::Tensor, true)};
    for (size_t o = 0; o < outputs; ++o) node->outputs.push_back(add(Kind::Tensor));
  }

  void spoil() {
    Node& node = nodes[below(nodes.size())];
    const auto any_value = [&] { return one_of({-2, -1, static_cast<int64_t>(below(values.size() + 1)), INT64_MAX, INT64_MIN}); };
    switch (below(11)) {
      case 0: node.inputs[below(node.inputs.size())] = any_value(); break;
      case 1: node.outputs[below(node.outputs.size())] = any_value(); break;
      case 2: node.inputs.resize(below(6), any_value()); break;
      case 3: node.outputs.resize(below(6), any_value()); break;
      case 4: node.op = below(2) == 0 ? "FusedNothing" : nodes[below(nodes.size())].op; break;
      case 5: std::swap(node, nodes[below(nodes.size())]); break;
      case 6: values[below(values.size())].type = static_cast<int32_t>(one_of({-1, 0, 1, 6, 8, 9, 10, 11, 16, 99, INT32_MIN})); break;
      case 7: threads = static_cast<size_t>(one_of({0, -1, 1025, int64_t{1} << 40})); break;
      case 8: length = one_of({-2, INT64_MIN}); break;
      case 9: nodes.resize(below(nodes.size() + 1)); break;
      default:
        if (node.attributes.texts.empty() || node.attributes.lists.empty()) {
          for (auto& [name, text] : node.attributes.texts) fuzz::spoil_text(&text);
          for (auto& [name, list] : node.attributes.lists) list[below(list.size())] = one_of({-1, 0, 1, 5, INT64_MAX});
          break;
        }
        node.attributes.numbers.emplace("group", 1);
        fuzz::spoil_attributes(&node.attributes);
    }
  }
};

struct Memory {
  char* data = nullptr;
  size_t bytes = 0;

  bool overlaps(const Memory& other) const {
    return std::max(data, other.data) < std::min(data + bytes, other.data + other.bytes);
  }
};

// A binding, and what its values are in.
class Calls {
 public:
  Calls(const Model& model, onnxfuse_binding* binding) : model_(model), binding_(binding), bound_(model.values.size()) {}
  ~Calls() { onnxfuse_binding_release(binding_); }
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  onnxfuse_binding* binding() const { return binding_; }

  void bind_inputs() {
    batch_ = one_of({1, 2, 5, 5, 0});
    for (size_t value = 0; value < model_.given; ++value) bind(value, shape_of(value), below(8) == 0);
  }

  void call() {
    const size_t value = below(60) == 0 ? one_of({-1, INT64_MAX}) : below(model_.values.size() + (below(20) == 0 ? 1 : 0));
    if (value >= model_.values.size()) return call_without_value(value);
    switch (below(8)) {
      case 0: return bind(value, shape_of(value), below(2) == 0);
      case 1: return bind(value, any_shape(), below(2) == 0);
      case 2: return value < model_.given && below(4) != 0 ? read(value) : unbind(value);
      case 3: return move(value);
      case 4: return take(value);
      case 5: return read(value);
      default: return run();
    }
  }

  // What may be called while another thread calls something: no memory changes.
  void call_beside_another() {
    int64_t dims[16];
    const void* data = nullptr;
    const size_t value = below(model_.values.size());
    switch (below(4)) {
      case 0: onnxfuse_binding_result(binding_, value, dims, &data); break;
      case 1: if (bound_[value].data != nullptr) onnxfuse_binding_move(binding_, value, bound_[value].data); break;
      case 2: onnxfuse_binding_bind(binding_, value, nullptr, nullptr, 0); break;
      default: onnxfuse_binding_run(binding_);
    }
  }

 private:
  // What fits the nodes.
  Shape shape_of(size_t value) const {
    switch (model_.values[value].kind) {
      case Kind::Row: return {1, {kSize}};
      case Kind::Weights: return {3, {kChannels, kChannels, 3}};
      case Kind::Matrix: return {3, {1, kSize, kNhwcBlock}};
      case Kind::Number: return {0, {}};
      case Kind::Wide: return {3, {batch_, kChannels, 2 * kSize}};
      default: return {3, {batch_, kChannels, kSize}};
    }
  }

  Shape any_shape() const {
    Shape shape;
    shape.rank = static_cast<int>(below(below(4) == 0 ? 17 : 5));
    for (int d = 0; d < shape.rank; ++d) shape.dims[static_cast<size_t>(d)] = one_of({0, 1, 1, 2, kChannels, kSize});
    if (shape.rank > 0 && below(8) == 0) {
      shape.dims[below(static_cast<size_t>(shape.rank))] = one_of({-1, INT64_MIN, int64_t{1} << 40, INT64_MAX});
    }
    return shape;
  }

  // Memory of so many bytes: new, or with `shared` some that others have.
  Memory memory(size_t bytes, bool shared) {
    if (shared) {
      std::vector<Memory> others;
      for (const Memory& other : bound_) {
        if (other.bytes >= bytes) others.push_back(other);
      }
      if (!others.empty()) {
        const Memory& other = others[below(others.size())];
        const size_t room = (other.bytes - bytes) / 8;
        return {other.data + 8 * (room == 0 ? 0 : below(room + 1)), bytes};
      }
    }
    memory_.push_back(std::make_unique<char[]>(bytes));
    char* const data = memory_.back().get();
    for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(below(4) == 0 ? below(256) : i % 3 == 0 ? 63 : 0);
    return {data, bytes};
  }

  void bind(size_t value, const Shape& shape, bool shared) {
    std::vector<int64_t> dims(shape.dims.begin(), shape.dims.begin() + shape.rank);
    if (below(100) == 0) dims.resize(17 + below(1000), 1);
    const auto rank = dims.size();
    int64_t count = 0;
    const bool fits = element_count(shape, &count) && rank <= kMaxRank;
    if (fits && count > kMostElements) return;
    const Memory given = memory(fits ? static_cast<size_t>(count) * size_of(model_.values[value].type) : 64, shared);
    const bool bound = onnxfuse_binding_bind(binding_, value, given.data, dims.data(), rank) == 0;
    expect(bound == fits, "a shape is taken that is none, or not one that is");
    if (!bound) return expect_reason();
    bound_[value] = given;
    shapes_[value] = dims;
  }

  void unbind(size_t value) {
    expect(onnxfuse_binding_bind(binding_, value, nullptr, nullptr, 0) == 0, "nothing is bound");
    bound_[value] = {};
  }

  void move(size_t value) {
    const Memory given = memory(std::max<size_t>(bound_[value].bytes, 1), false);
    const bool moved = onnxfuse_binding_move(binding_, value, below(20) == 0 ? nullptr : given.data) == 0;
    expect(!moved || bound_[value].data != nullptr, "memory is moved that is not there");
    if (!moved) return expect_reason();
    bound_[value].data = given.data;
  }

  void take(size_t value) {
    void* data = nullptr;
    onnxfuse_memory* const taken = onnxfuse_binding_take(binding_, value, &data);
    if (taken == nullptr) return expect_reason();
    expect(bound_[value].data == nullptr, "memory of the caller's is taken");
    *static_cast<volatile char*>(data) = 1;
    onnxfuse_memory_release(taken);
  }

  // The bytes of a value.
  std::string read(onnxfuse_binding* binding, size_t value) const {
    int64_t dims[16];
    const void* data = nullptr;
    Shape shape;
    const int64_t rank = onnxfuse_binding_result(binding, value, dims, &data);
    if (rank < 0) {
      expect_reason();
      return "";
    }
    expect(rank <= kMaxRank, "a tensor has too many dimensions");
    shape.rank = static_cast<int>(rank);
    std::copy_n(dims, rank, shape.dims.begin());
    int64_t count = 0;
    expect(element_count(shape, &count), "a result has no shape");
    return {static_cast<const char*>(data), static_cast<size_t>(count) * size_of(model_.values[value].type)};
  }

  void read(size_t value) const { read(binding_, value); }

  void run() {
    std::map<size_t, std::string> before;  // what is read
    for (size_t value = 0; value < bound_.size(); ++value) {
      if (bound_[value].data != nullptr) before[value] = {bound_[value].data, bound_[value].bytes};
    }
    if (onnxfuse_binding_run(binding_) != 0) return expect_reason();
    // With several nodes, one may read what another has written there.
    if (model_.nodes.size() == 1 || !shares_memory()) check_results(before);
  }

  bool shares_memory() const {
    for (size_t a = 0; a < bound_.size(); ++a) {
      for (size_t b = 0; b < a; ++b) {
        if (bound_[a].overlaps(bound_[b])) return true;
      }
    }
    return false;
  }

  // Against a binding whose outputs are in memory of the executable's.
  void check_results(const std::map<size_t, std::string>& before) const {
    std::vector<int64_t> computed;
    for (const Node& node : model_.nodes) computed.insert(computed.end(), node.outputs.begin(), node.outputs.end());
    onnxfuse_binding* const other = onnxfuse_binding_create(executable);
    std::vector<std::unique_ptr<char[]>> inputs;
    for (const auto& [value, bytes] : before) {
      if (std::find(computed.begin(), computed.end(), static_cast<int64_t>(value)) != computed.end()) continue;
      inputs.push_back(std::make_unique<char[]>(bytes.size()));
      std::copy(bytes.begin(), bytes.end(), inputs.back().get());
      const auto& dims = shapes_.at(value);
      expect(onnxfuse_binding_bind(other, value, inputs.back().get(), dims.data(), dims.size()) == 0, "an input");
    }
    expect(onnxfuse_binding_run(other) == 0, "a run fails where its tensors lie apart");
    for (size_t o = 0; o < computed.size(); ++o) {
      const auto value = static_cast<size_t>(computed[o]);
      if (!model_.values[value].is_output) continue;
      bool is_whole = true;
      for (size_t later = o + 1; later < computed.size(); ++later) {
        is_whole = is_whole && !bound_[value].overlaps(bound_[static_cast<size_t>(computed[later])]);
      }
      if (is_whole) expect(read(binding_, value) == read(other, value), "a result depends on where tensors lie");
    }
    onnxfuse_binding_release(other);
  }

  void call_without_value(size_t value) const {
    int64_t dims[16] = {};
    const void* data = nullptr;
    void* memory = nullptr;
    expect(onnxfuse_binding_bind(binding_, value, dims, dims, 1) != 0, "a value is bound that is not there");
    expect_reason();
    expect(onnxfuse_binding_move(binding_, value, dims) != 0, "a value is moved that is not there");
    expect(onnxfuse_binding_result(binding_, value, dims, &data) < 0, "a value is read that is not there");
    expect(onnxfuse_binding_take(binding_, value, &memory) == nullptr, "a value is taken that is not there");
  }

 public:
  static void expect_reason() { expect(std::strlen(onnxfuse_last_error()) > 0, "it fails for no reason"); }

  onnxfuse_executable* executable = nullptr;

 private:
  const Model& model_;
  onnxfuse_binding* const binding_;
  int64_t batch_ = 1;
  std::vector<Memory> bound_;                      // by value; none where the executable has it
  std::map<size_t, std::vector<int64_t>> shapes_;  // of what has been bound
  std::vector<std::unique_ptr<char[]>> memory_;
};

void check_model() {
  const Model model;
  onnxfuse_executable* const executable = model.create();
  if (executable == nullptr) return Calls::expect_reason();
  {
    Calls calls(model, onnxfuse_binding_create(executable));
    calls.executable = executable;
    calls.bind_inputs();
    for (size_t count = below(24); count > 0; --count) calls.call();
    if (below(32) == 0) {
      std::thread other([&] {
        for (int run = 0; run < 20; ++run) onnxfuse_binding_run(calls.binding());
      });
      for (int call = 0; call < 20; ++call) calls.call_beside_another();
      other.join();
    }
  }
  onnxfuse_executable_release(executable);
}

}  // namespace

int main(int argc, char** argv) { return fuzz::run(argc, argv, check_model); }
