// Calls of the functions for models without ONNX Runtime that nobody should make: each fails with a reason, and nothing is
// written where it should not be.  Linked with the library.
#include "executable/executable_api.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kFloat = 1;  // ONNX's numbers
constexpr int kString = 8;
constexpr char kSum[] = "onnxfuse 1\ninput f32 broadcast\ninput f32 broadcast\nadd f32 0 1\noutput 2\n";
constexpr char kHeavy[] =
    "onnxfuse 1\ninput f64 broadcast\nsinh f64 0\ntan f64 1\natanh f64 2\nacosh f64 3\noutput 4\n";

void expect(bool holds, const std::string& what) {
  if (holds) return;
  std::printf("failed: %s (the last error is '%s')\n", what.c_str(), onnxfuse_last_error());
  std::exit(1);
}

void expect_error(bool failed, const char* reason) {
  expect(failed && std::strstr(onnxfuse_last_error(), reason) != nullptr, std::string("it fails for ") + reason);
}

struct Node {
  std::vector<int64_t> inputs;
  std::vector<int64_t> outputs;
  const char* program = kSum;
};

onnxfuse_executable* create(const std::vector<Node>& nodes, const std::vector<onnxfuse_value>& values, size_t threads = 1,
                            int64_t count = -1) {
  static const int64_t number = 7;
  std::vector<std::vector<onnxfuse_attribute>> attributes;
  std::vector<onnxfuse_node> described;
  for (const Node& node : nodes) {
    attributes.push_back({{"program", node.program, std::strlen(node.program), nullptr, 0},
                          {"number", nullptr, 0, &number, count}});
    described.push_back({"FusedElementwise", "node", node.inputs.data(), node.inputs.size(), node.outputs.data(),
                         node.outputs.size(), nullptr, 2});
  }
  for (size_t i = 0; i < nodes.size(); ++i) described[i].attributes = attributes[i].data();
  return onnxfuse_executable_create(described.data(), described.size(), values.data(), values.size(), threads);
}

const std::vector<onnxfuse_value> kValues{{"x", kFloat, 0}, {"y", kFloat, 0}, {"z", kFloat, 1}};

void test_models() {
  expect_error(create({{{0, 0}, {2}}}, kValues, 0) == nullptr, "0 threads cannot run a model");
  expect_error(create({{{0, 0}, {2}}}, kValues, SIZE_MAX) == nullptr, "threads cannot run a model");
  expect_error(create({{{0, 3}, {2}}}, kValues) == nullptr, "a value that is not there");
  expect_error(create({{{0, -2}, {2}}}, kValues) == nullptr, "a value that is not there");
  expect_error(create({{{0, 0}, {-1}}}, kValues) == nullptr, "a value that is not there");
  expect_error(create({{{0}, {2}}}, kValues) == nullptr, "has 1 inputs");
  expect_error(create({{{0, 0}, {2}}, {{0, 0}, {2}}}, kValues) == nullptr, "'z' is computed twice");
  expect_error(create({{{0, 2}, {2}}}, kValues) == nullptr, "'z' is read before it is computed");
  expect_error(create({{{0, 1}, {2}}, {{0, 0}, {1}}}, kValues) == nullptr, "'y' is read before it is computed");
  expect_error(create({{{0, 0}, {2}}}, {{"x", kFloat, 0}, {"y", kString, 0}, {"z", kFloat, 1}}) == nullptr, "of a type");
  expect_error(create({{{0, 0}, {2}}}, kValues, 1, -2) == nullptr, "the attribute number has no length");
}

void test_bindings() {
  onnxfuse_executable* const executable = create({{{0, 0}, {1}}, {{1, 0}, {2}}}, kValues);
  expect(executable != nullptr, "a model of two nodes");
  onnxfuse_binding* const binding = onnxfuse_binding_create(executable);
  onnxfuse_executable_release(executable);
  expect(binding != nullptr, "a binding");
  float x[] = {1, 2, 3};
  float y[3], other[3] = {4, 5, 6};
  const std::vector<int64_t> dims(1000, 1);
  const int64_t three = 3, negative = -3;
  const int64_t many[] = {int64_t{1} << 40, int64_t{1} << 40};
  int64_t shape[16];
  const void* data = nullptr;
  void* memory = nullptr;
  for (const size_t value : {size_t{3}, SIZE_MAX}) {
    expect_error(onnxfuse_binding_bind(binding, value, x, &three, 1) != 0, "there is no value");
    expect_error(onnxfuse_binding_move(binding, value, x) != 0, "there is no value");
    expect_error(onnxfuse_binding_result(binding, value, shape, &data) < 0, "there is no value");
    expect_error(onnxfuse_binding_take(binding, value, &memory) == nullptr, "there is no value");
  }
  for (const size_t rank : {size_t{17}, size_t{1000}}) {
    expect_error(onnxfuse_binding_bind(binding, 0, x, dims.data(), rank) != 0, "at most 16 dimensions");
  }
  expect_error(onnxfuse_binding_bind(binding, 0, x, dims.data(), SIZE_MAX) != 0, "at most 16 dimensions");
  expect_error(onnxfuse_binding_bind(binding, 0, x, &negative, 1) != 0, "no tensor of shape [-3]");
  expect_error(onnxfuse_binding_bind(binding, 0, x, many, 2) != 0, "no tensor of shape");
  expect_error(onnxfuse_binding_move(binding, 0, x) != 0, "'x' has no memory");
  expect_error(onnxfuse_binding_run(binding) != 0, "there is no 'x' yet");
  expect_error(onnxfuse_binding_result(binding, 2, shape, &data) < 0, "nothing has run yet");
  expect_error(onnxfuse_binding_take(binding, 2, &memory) == nullptr, "no memory of 'z'");

  expect(onnxfuse_binding_bind(binding, 0, x, &three, 1) == 0, "memory for x");
  expect(onnxfuse_binding_bind(binding, 1, y, &three, 1) == 0, "memory for a value between nodes");
  expect_error(onnxfuse_binding_move(binding, 0, nullptr) != 0, "'x' has no memory");
  for (int run = 0; run < 2; ++run) {
    expect(onnxfuse_binding_run(binding) == 0, "a run");
    expect(y[2] == 6, "what is bound is computed there, in each run");
    expect(onnxfuse_binding_result(binding, 2, shape, &data) == 1 && shape[0] == 3, "the shape of the result");
    expect(static_cast<const float*>(data)[2] == 9, "the result");
  }
  expect_error(onnxfuse_binding_take(binding, 1, &memory) == nullptr, "no memory of 'y'");
  expect(onnxfuse_binding_move(binding, 0, other) == 0 && onnxfuse_binding_run(binding) == 0, "other memory");
  onnxfuse_memory* const taken = onnxfuse_binding_take(binding, 2, &memory);
  expect(taken != nullptr && static_cast<float*>(memory)[0] == 12, "the result in memory of its own");
  expect_error(onnxfuse_binding_take(binding, 2, &memory) == nullptr, "no memory of 'z'");
  onnxfuse_binding_release(binding);
  expect(static_cast<float*>(memory)[1] == 15, "memory that is taken outlives the binding");
  onnxfuse_memory_release(taken);
}

// A thread that changes a binding while another runs it is refused: there would be two users of one memory.
void test_changes_during_a_run() {
  constexpr int kDouble = 11;
  onnxfuse_executable* const executable =
      create({{{0}, {1}, kHeavy}}, {{"x", kDouble, 0}, {"y", kDouble, 1}});
  expect(executable != nullptr, "a model of one node");
  onnxfuse_binding* const binding = onnxfuse_binding_create(executable);
  onnxfuse_executable_release(executable);
  std::vector<double> x(1 << 16, 0.5);
  const int64_t size = 1 << 16;
  expect(onnxfuse_binding_bind(binding, 0, x.data(), &size, 1) == 0, "memory for x");
  int64_t shape[16];
  const void* data = nullptr;
  void* memory = nullptr;
  // Whether it fails.
  const std::vector<std::function<bool()>> calls{
      [&] { return onnxfuse_binding_bind(binding, 0, x.data(), &size, 1) != 0; },
      [&] { return onnxfuse_binding_move(binding, 0, x.data()) != 0; },
      [&] { return onnxfuse_binding_result(binding, 0, shape, &data) < 0; },
      [&] { return onnxfuse_binding_run(binding) != 0; },
      [&] {
        onnxfuse_memory* const taken = onnxfuse_binding_take(binding, 1, &memory);
        if (taken != nullptr) onnxfuse_memory_release(taken);
        return taken == nullptr;
      },
  };
  for (const auto& fails : calls) {
    std::atomic<bool> stop{false};
    std::thread runner([&] {
      while (!stop.load()) onnxfuse_binding_run(binding);
    });
    // The first calls may come before the thread runs, and others between two of its runs.
    while (!fails() || std::strstr(onnxfuse_last_error(), "another thread") == nullptr) std::this_thread::yield();
    stop.store(true);
    runner.join();
  }
  onnxfuse_binding_release(binding);
}

}  // namespace

int main() {
  test_models();
  test_bindings();
  test_changes_during_a_run();
}
