// Random nodes of attention, some of them spoilt, and shapes for them.
#ifndef ONNXFUSE_FUZZ_ATTENTION_NODES_H_
#define ONNXFUSE_FUZZ_ATTENTION_NODES_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "nodes/attention/attention.h"
#include "tests/fuzz/fuzz_conv_nodes.h"

namespace fuzz {

inline Attributes random_attention() {
  Attributes attributes;
  const int64_t key_heads = one_of({1, 2, 3});
  attributes.lists["heads"] = {key_heads * one_of({1, 1, 2}), key_heads};
  for (const int64_t own : {attributes.lists["heads"][0], key_heads, key_heads}) {
    const int64_t before = one_of({0, 0, own, 2 * own});
    attributes.lists["first_head"].push_back(before);
    attributes.lists["input_heads"].push_back(before + own + one_of({0, 0, 1, own}));
  }
  for (int i = 0; i < 4; ++i) attributes.lists["heads_first"].push_back(one_of({0, 1}));
  attributes.numbers["scale_bits"] = one_of({0x3f800000, 0x3f000000, 0x3e800000});
  if (below(2) == 0) attributes.numbers["nan_as_zero"] = one_of({0, 1});
  if (below(2) == 0) attributes.numbers["masked_as_zero"] = one_of({0, 1});
  if (below(2) == 0) {
    attributes.numbers["fill_bits"] = one_of({0, 0x3f800000, 0xc0a00000});
    attributes.numbers["fills"] = one_of({0, 1});
  }
  if (below(3) == 0) attributes.numbers["windows"] = one_of({1, 2, 3});
  if (below(4) == 0) {
    const int64_t odd = one_of({-1, 0, 1, 0x7f800000, INT32_MAX, int64_t{1} << 40, INT64_MAX, INT64_MIN});
    switch (below(9)) {
      case 0: attributes.numbers["scale_bits"] = odd; break;
      case 1: attributes.lists["heads"][below(2)] = odd; break;
      case 2: attributes.lists["input_heads"][below(3)] = odd; break;
      case 3: attributes.lists["first_head"][below(3)] = odd; break;
      case 4: attributes.numbers["nan_as_zero"] = odd; break;
      case 5: attributes.numbers["fill_bits"] = odd; break;
      case 6: attributes.numbers["fills"] = odd; break;
      case 7: attributes.numbers["windows"] = odd; break;
      default: attributes.lists["heads_first"].resize(below(6), odd);
    }
  }
  return attributes;
}

// Shapes that mostly fit; sometimes of more elements than fit 64 bits.
inline std::vector<Shape> random_shapes(const Attention& node) {
  const auto size_of = [](int64_t size) {
    return below(60) == 0 ? one_of({0, 1, 1 << 16, INT32_MAX, int64_t{1} << 40, INT64_MAX}) : size;
  };
  const int64_t batch = size_of(one_of({1, 1, 2, 3}) * std::clamp<int64_t>(below(4) == 0 ? 1 : node.windows, 1, 1 << 20));
  const int64_t lengths[2] = {size_of(one_of({1, 2, 7, 16, 33, 70})), size_of(one_of({1, 3, 16, 31, 100}))};
  const int64_t sizes[2] = {size_of(one_of({1, 4, 7, 16, 24})), size_of(one_of({1, 5, 8, 33}))};
  const auto tensor = [&](size_t i, int64_t length, int64_t size) {
    const int64_t own = below(8) == 0 ? 1 : batch;
    const int64_t heads = node.input_heads[i];
    if (node.heads_first[i]) return Shape{4, {own, heads, length, size}};
    if (below(4) == 0 && heads % 3 == 0) return Shape{5, {own, length, 3, heads / 3, size}};
    if (below(2) == 0 || size > (1 << 20)) return Shape{4, {own, length, heads, size}};
    return Shape{3, {own, length, heads * size}};
  };
  std::vector<Shape> shapes{tensor(0, lengths[0], sizes[0]), tensor(1, lengths[1], sizes[0]),
                            tensor(2, lengths[1], sizes[1])};
  for (size_t i = 3; i < node.choice_input() + (node.chosen ? 1 : 0); ++i) {
    const int64_t parts = i == 3 && node.windows > 0 && below(8) != 0 ? node.windows : batch;
    shapes.push_back(random_operand({4, {parts, node.heads, lengths[0], lengths[1]}}));
  }
  if (below(20) == 0) shapes[below(shapes.size())].dims[below(4)] = one_of({0, 2, 5});
  if (below(40) == 0) shapes[below(shapes.size())].rank = static_cast<int>(below(6));
  return shapes;
}

}  // namespace fuzz

#endif  // ONNXFUSE_FUZZ_ATTENTION_NODES_H_
