// Plans of attention of shapes that no memory holds: they are found in few steps, and tell their bytes, or there is none.
#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "kernels/kernels.h"
#include "nodes/attention/attention.h"

namespace onnxfuse {

// Vectors of 16 floats, whatever runs here; no kernel is called.
const KernelTable& kernels() {
  static const KernelTable table = [] {
    KernelTable made{};
    made.floats = 16;
    return made;
  }();
  return table;
}

}  // namespace onnxfuse

namespace {

using namespace onnxfuse;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("failed: %s\n", what);
  std::exit(1);
}

// One query over so many keys of 8 elements, whose values are copied to whole vectors.
bool plan_for(int64_t keys, AttentionPlan* plan, std::string* error) {
  Attention node;
  node.heads = node.key_heads = 1;
  node.input_heads = {1, 1, 1};
  const Shape many{3, {1, keys, 8}};
  return make_attention_plan(node, {{Shape{3, {1, 1, 8}}, many, many}}, plan, error);
}

void divides_many_rows() {
  for (const int64_t shared : {1, 3, 32}) {
    for (const int64_t length : {int64_t{512}, int64_t{1} << 20, int64_t{1} << 40}) {
      Attention node;
      node.heads = 2 * shared;
      node.key_heads = 2;
      node.input_heads = {node.heads, 2, 2};
      node.heads_first = {true, true, true, true};
      const Shape keys{4, {1, 2, 64, 16}};
      AttentionPlan plan;
      std::string error;
      const Shape rows{4, {1, node.heads, length, 16}};
      expect(make_attention_plan(node, {{rows, keys, keys}}, &plan, &error), "a plan of many rows");
      // Each part copies the keys, which so many rows of it are worth, and balances any machine's threads.
      const int64_t most = std::max<int64_t>(length / 16, 1);
      expect(plan.splits >= 1 && plan.splits <= std::min<int64_t>(most, 1024) && plan.tasks >= 1, "few parts");
    }
  }
}

}  // namespace

int main() {
  divides_many_rows();
  for (const int64_t keys : {int64_t{1}, int64_t{1} << 40, int64_t{1} << 54, int64_t{26} << 50}) {
    AttentionPlan plan;
    std::string error;
    expect(plan_for(keys, &plan, &error), "a plan");
    expect(plan.floats >= static_cast<size_t>(keys) * 16 && plan.floats <= SIZE_MAX / sizeof(float), "its memory");
  }
  // Each part of the memory could be told, but not all together.
  AttentionPlan plan;
  std::string error;
  expect(!plan_for(int64_t{31} << 50, &plan, &error), "no plan");
  expect(error.find("too many elements") != std::string::npos, "the reason");
}
