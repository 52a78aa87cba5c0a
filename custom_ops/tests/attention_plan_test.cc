// The memory of a thread for attention of shapes that no memory holds: a plan tells its bytes, or there is none.
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "attention.h"
#include "kernels.h"

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

}  // namespace

int main() {
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
