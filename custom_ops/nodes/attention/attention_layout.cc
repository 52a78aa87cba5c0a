#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "nodes/attention/attention.h"

namespace onnxfuse {
namespace {

constexpr int64_t kMostHeads = int64_t{1} << 20;

bool fail(std::string problem, std::string* error) {
  *error = std::move(problem);
  return false;
}

// The heads of a tensor that has so many, from the first on.
bool view(const Shape& shape, int64_t heads, bool heads_first, size_t input, HeadsView* view, std::string* error) {
  const auto& dims = shape.dims;
  int64_t count = 0;
  bool fits = element_count(shape, &count);
  if (shape.rank == 3 && !heads_first) {
    fits = fits && dims[2] % heads == 0;
    *view = {dims[0], dims[1], dims[2] / heads};
  } else if (shape.rank == 5 && !heads_first) {
    fits = fits && dims[2] > 0 && heads % dims[2] == 0 && dims[3] == heads / dims[2];
    *view = {dims[0], dims[1], dims[4]};
  } else {
    fits = fits && shape.rank == 4 && dims[heads_first ? 1 : 2] == heads;
    *view = {dims[0], dims[heads_first ? 2 : 1], dims[3]};
  }
  if (!fits) return fail("input " + std::to_string(input) + " of shape " + to_string(shape) + " is not of " +
                             std::to_string(heads) + " heads", error);
  if (count == 0) return true;  // then nothing bounds the other sizes
  view->per_head = heads_first ? view->length * view->size : view->size;
  view->per_row = heads_first ? view->size : heads * view->size;
  view->per_batch = heads * view->length * view->size;
  return true;
}

// What an input has of Q, K or V.
bool view_input(const Attention& node, const PlanKey& key, size_t input, HeadsView* found, std::string* error) {
  if (!view(key.shapes[input], node.input_heads[input], node.heads_first[input], input, found, error)) return false;
  found->begin = node.first_head[input] * found->per_head;
  return true;
}

// Of the mask or the choices, as `what` says.
bool view_mask(const char* what, const Shape& mask, const Shape& scores, std::array<int64_t, 4>* strides,
               std::string* error) {
  int64_t stride = 1, count = 0;
  bool fits = mask.rank <= 4 && element_count(mask, &count);
  for (int d = 0; fits && d < mask.rank; ++d) {
    const int64_t size = mask.from_back(d);
    fits = size == 1 || size == scores.from_back(d);
    if (size != 1) (*strides)[static_cast<size_t>(3 - d)] = stride;
    if (count > 0) stride *= size;  // or else nothing bounds the sizes, and nothing is read
  }
  return fits || fail("the " + std::string(what) + " of shape " + to_string(mask) + " does not broadcast to the scores, " +
                          to_string(scores), error);
}

}  // namespace

bool read_attention(const AttributeSource& source, size_t inputs, Attention* node, std::string* error) {
  std::vector<int64_t> heads;
  if (!source.numbers("heads", &heads) || heads.size() != 2 || heads[1] < 1 || heads[0] < heads[1] ||
      heads[0] > kMostHeads || heads[0] % heads[1] != 0) {
    return fail("the heads attribute is not two numbers, the first a multiple of the second", error);
  }
  const int64_t own[3] = {heads[0], heads[1], heads[1]};
  std::vector<int64_t> input_heads, first_head;
  bool fits = source.numbers("input_heads", &input_heads) && input_heads.size() == 3 &&
              source.numbers("first_head", &first_head) && first_head.size() == 3;
  for (size_t i = 0; fits && i < 3; ++i) {
    fits = input_heads[i] >= own[i] && input_heads[i] <= kMostHeads;
    fits = fits && first_head[i] >= 0 && first_head[i] <= input_heads[i] - own[i];
  }
  if (!fits) return fail("the input_heads and first_head attributes are not heads of three inputs", error);
  std::vector<int64_t> first;
  const auto is_flag = [](int64_t number) { return number == 0 || number == 1; };
  if (!source.numbers("heads_first", &first) || first.size() != 4 || !std::all_of(first.begin(), first.end(), is_flag)) {
    return fail("the heads_first attribute is not four numbers of 0 or 1", error);
  }
  if (!read_float_bits(source, "scale_bits", &node->scale)) {
    return fail("the scale_bits attribute is not the bits of a finite float32", error);
  }
  int64_t nan_as_zero = 0;
  if (source.number("nan_as_zero", &nan_as_zero) && !is_flag(nan_as_zero)) {
    return fail("the nan_as_zero attribute is not 0 or 1", error);
  }
  int64_t masked_as_zero = 0;
  if (source.number("masked_as_zero", &masked_as_zero) && !is_flag(masked_as_zero)) {
    return fail("the masked_as_zero attribute is not 0 or 1", error);
  }
  int64_t bits = 0, fills = 0;
  const bool chosen = source.number("fill_bits", &bits);
  const bool valid = !chosen || (bits >= 0 && bits <= UINT32_MAX && source.number("fills", &fills) && is_flag(fills));
  const auto word = static_cast<uint32_t>(bits);
  if (valid) std::memcpy(&node->fill, &word, sizeof word);
  if (!valid || std::isnan(node->fill)) {
    return fail("the fill_bits and fills attributes are not the bits of a float32 and 0 or 1", error);
  }
  int64_t windows = 0;
  if (source.number("windows", &windows) && windows < 1) return fail("the windows attribute is not positive", error);
  const size_t least = chosen ? 4 : 3;
  if (inputs != least && inputs != least + 1) {
    return fail("the node has " + std::to_string(inputs) + " inputs, not Q, K, V, perhaps a mask, and choices with " +
                    "fill_bits", error);
  }
  if (windows > 0 && inputs == least) return fail("the windows attribute is of a node without a mask", error);
  node->heads = heads[0];
  node->key_heads = heads[1];
  std::copy_n(input_heads.begin(), 3, node->input_heads.begin());
  std::copy_n(first_head.begin(), 3, node->first_head.begin());
  for (size_t i = 0; i < 4; ++i) node->heads_first[i] = first[i] == 1;
  node->masked = inputs == least + 1;
  node->chosen = chosen;
  node->fills = fills == 1;
  node->nan_as_zero = nan_as_zero == 1;
  node->masked_as_zero = masked_as_zero == 1;
  node->windows = windows;
  return true;
}

bool make_attention_layout(const Attention& node, const PlanKey& key, AttentionLayout* layout, std::string* error) {
  if (!view_input(node, key, 0, &layout->q, error) || !view_input(node, key, 1, &layout->k, error) ||
      !view_input(node, key, 2, &layout->v, error)) {
    return false;
  }
  HeadsView &q = layout->q, &k = layout->k, &v = layout->v;
  std::vector<const Shape*> masks;  // what broadcasts to the scores
  if (node.masked) masks.push_back(&key.shapes[3]);
  if (node.chosen) masks.push_back(&key.shapes[node.choice_input()]);
  // A batch of one serves all, as for MatMul.
  int64_t batch = q.batch;
  std::vector<int64_t> batches{k.batch, v.batch};
  for (const Shape* mask : masks) {
    const bool of_windows = node.windows > 0 && mask == masks[0];
    batches.push_back(mask->rank == 4 && !of_windows ? mask->dims[0] : 1);
  }
  for (const int64_t other : batches) {
    if (batch == 1) batch = other;
    if (other != batch && other != 1) {
      return fail("there are batches of " + std::to_string(batch) + " and " + std::to_string(other), error);
    }
  }
  // So does a row of Q, or a key, where the mask has more.
  const auto spread = [](HeadsView* view, int64_t length) {
    if (view->length != 1 || length == 1) return;
    view->length = length;
    view->per_row = 0;
  };
  for (const Shape* mask : masks) {
    spread(&q, mask->from_back(1));
    spread(&k, mask->from_back(0));
  }
  if (q.size != k.size || k.length != v.length) {
    return fail("Q, K and V of shapes " + to_string(key.shapes[0]) + ", " + to_string(key.shapes[1]) + " and " +
                    to_string(key.shapes[2]) + " do not fit each other", error);
  }
  Shape scores{4, {batch, node.heads, q.length, k.length}};
  Shape window_scores = scores;
  if (node.windows > 0) {
    if (batch % node.windows != 0) {
      return fail("a batch of " + std::to_string(batch) + " is not one of images of " + std::to_string(node.windows) +
                      " windows", error);
    }
    window_scores.dims[0] = node.windows;
  }
  layout->mask_batch = std::max<int64_t>(window_scores.dims[0], 1);
  if (node.masked && !view_mask("mask", key.shapes[3], window_scores, &layout->mask, error)) return false;
  if (node.chosen && !view_mask("choice", key.shapes[node.choice_input()], scores, &layout->choices, error)) return false;
  int64_t count = 0;
  if (!element_count({2, {node.heads, v.size}}, &count) || !element_count(scores, &count)) {
    return fail("there are too many scores, of shape " + to_string(scores), error);
  }
  layout->output = node.heads_first[3] ? Shape{4, {batch, node.heads, q.length, v.size}}
                                     : Shape{3, {batch, q.length, node.heads * v.size}};
  if (!element_count(layout->output, &layout->count)) {
    return fail("the output of shape " + to_string(layout->output) + " has too many elements", error);
  }
  return view(layout->output, node.heads, node.heads_first[3], 0, &layout->result, error);
}

}  // namespace onnxfuse
