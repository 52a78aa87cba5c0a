// Runs a fused model once on ones: ./main fused.onnx D0 D1 ..., the sizes of its one float32 input, and prints the first
// values of its one output.  See examples/README.md for how to build it.
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <numeric>
#include <vector>

#include "onnxfuse.h"

int main(int argc, char** argv) try {
  if (argc < 2) throw std::runtime_error("usage: main fused.onnx SIZE...");
  Ort::Env env;
  Ort::SessionOptions options;
  Ort::ThrowOnError(onnxfuse_register(&Ort::GetApi(), options, argv[1]));
  Ort::Session session(env, argv[1], options);

  std::vector<int64_t> sizes;
  std::transform(argv + 2, argv + argc, std::back_inserter(sizes), std::atoll);
  const auto count = std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
  std::vector<float> data(count, 1.0f);
  const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  const auto x = Ort::Value::CreateTensor<float>(memory, data.data(), data.size(), sizes.data(), sizes.size());

  Ort::AllocatorWithDefaultOptions allocator;
  const auto input = session.GetInputNameAllocated(0, allocator), output = session.GetOutputNameAllocated(0, allocator);
  const char *inputs[] = {input.get()}, *outputs[] = {output.get()};
  const auto results = session.Run(Ort::RunOptions{nullptr}, inputs, &x, 1, outputs, 1);
  const float* y = results.front().GetTensorData<float>();
  for (int64_t i = 0; i < std::min<int64_t>(count, 4); ++i) std::cout << y[i] << '\n';
  return 0;
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << '\n';
  return 2;
}
