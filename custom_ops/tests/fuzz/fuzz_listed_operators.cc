// Mutated models into the reader of their operators: from memory and from a file it reads within them, and the same, and
// what it writes can be read.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "operators/listed_operators.h"
#include "platform/error.h"
#include "tests/fuzz/fuzz_random.h"

namespace onnxfuse {

bool operator==(const OperatorRange& a, const OperatorRange& b) {
  return a.family == b.family && a.first == b.first && a.last == b.last && a.of_floats == b.of_floats;
}

}  // namespace onnxfuse

namespace {

using fuzz::below;
using fuzz::expect;
using onnxfuse::OperatorRange;

// A field that holds `bytes`, whose length is told wrong now and then.
std::string field(unsigned number, const std::string& bytes) {
  std::string text;
  const auto put = [&](uint64_t value) {
    for (; value >= 0x80; value >>= 7) text += static_cast<char>(value | 0x80);
    text += static_cast<char>(value);
  };
  put(number * 8 + 2);
  put(below(50) == 0 ? fuzz::g_random() >> below(64) : bytes.size());
  return text + bytes;
}

std::string random_model() {
  std::string model("\x08\x09", 2);  // the version
  model += field(7, std::string(below(300), 'g'));
  for (size_t functions = below(6); functions > 0; --functions) {
    const std::string domain = below(2) == 0 ? "onnxfuse" : "other";
    const std::string type = below(2) == 0 ? "float" : "int64";
    const std::string metadata = field(14, field(1, "onnxfuse.element_type") + field(2, type));
    const char* const names[] = {"Name", "Name_2", "Name_3", "Name_3", "Name_02", "Name_9999999", "Name..9", "A,*", ""};
    model += field(25, field(1, names[below(std::size(names))]) + field(4, "input") + field(10, domain) + (below(2) == 0 ? metadata : ""));
  }
  if (below(3) == 0) fuzz::spoil(&model, std::string_view("\x0a\xff\x00\x52", 4));
  return model;
}

// The list, or "?" where these are no bytes of a model.
template <class... Bytes>
std::string operators_of(const Bytes&... bytes) {
  try {
    const std::vector<OperatorRange> operators = onnxfuse::list_operators(onnxfuse::ModelBytes(bytes...), "onnxfuse");
    for (const auto& list : {operators, onnxfuse::without_types(operators)}) {
      const bool same = onnxfuse::parse_operators(onnxfuse::write_operators(list)) == list;
      expect(same, "a list is read otherwise than it was written");
    }
    return onnxfuse::write_operators(operators);
  } catch (const onnxfuse::Error&) {
    return "?";
  }
}

// The name of a file, which is removed in the end.
struct TemporaryFile {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("onnxfuse_fuzz_" + std::to_string(std::random_device{}()))).string();
  ~TemporaryFile() { std::filesystem::remove(path); }
};

void check_model() {
  static const TemporaryFile file;
  const std::string model = random_model();
  // In memory of its own size, so that AddressSanitizer sees what is read behind it.
  const std::string exact(model.begin(), model.end());
  const std::string operators = operators_of(exact.data(), exact.size());
  onnxfuse::parse_operators(model);
  std::ofstream(file.path, std::ios::binary) << model;
  expect(operators_of(file.path.c_str()) == operators, "a file gives other operators than its bytes");
}

}  // namespace

int main(int argc, char** argv) { return fuzz::run(argc, argv, check_model); }
