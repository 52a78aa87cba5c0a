// Scaled dot-product attention of several heads at once: softmax(scale * Q K^T + mask) V (A. Vaswani et al., Attention
// Is All You Need, 2017).
//
// Inputs: Q, K, V and perhaps the mask, all of float32, and perhaps choices, which are bool.  Q, K and V are [batch,
// length, heads * size] or [batch, length, heads, size], or [batch, heads, length, size] where heads come first; there
// may be fewer heads of K and V, each for as many of Q.  Each may be but some heads, one after the other, of those that its input has: if one
// projection makes Q, K and V, its result is all three inputs, perhaps with heads in two dimensions, [batch, length, 3,
// heads, size].  The mask broadcasts to the scores, [batch, heads, length of Q, length of K], and they to it, but for
// heads; and so do choices, which say for each score, times the scale and before the mask is added, whether another number
// takes its place.  With `windows` the scores are those of so many windows of one image after the other, and the mask has
// one part for each: its batch is that of the windows, and begins anew with each image (Z. Liu et al., Swin Transformer,
// 2021).  The output is [batch, length, heads * size], or [batch, heads, length, size] where heads come first.
#ifndef ONNXFUSE_ATTENTION_H_
#define ONNXFUSE_ATTENTION_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "program/attribute_source.h"
#include "runtime/executor.h"

namespace onnxfuse {

struct Attention {
  int64_t heads = 0;
  int64_t key_heads = 0;                 // of K and V
  std::array<int64_t, 3> input_heads{};  // how many the inputs of Q, K and V have
  std::array<int64_t, 3> first_head{};   // which of them is the first of Q, K and V
  std::array<bool, 4> heads_first{};     // of Q, K, V and the output
  float scale = 1;
  bool masked = false;
  bool chosen = false;  // whether there are choices
  bool fills = false;   // which of them puts `fill` in a score's place
  float fill = 0;
  bool nan_as_zero = false;  // a row of weights that are no numbers is one of zeros
  bool masked_as_zero = false;  // a row of weights of which the mask, or the choices, leaves nothing is one of zeros
  int64_t windows = 0;       // of an image, to each of which a part of the mask belongs; 0 if there are none

  size_t choice_input() const { return masked ? 4 : 3; }
};

// Reads and validates the attributes of a node with this many inputs; nothing in them is trusted.  On failure returns
// false and sets `error`.
bool read_attention(const AttributeSource& source, size_t inputs, Attention* node, std::string* error);

// A tensor by head: how many of what there are, and how many elements they are apart.
struct HeadsView {
  int64_t batch = 0;
  int64_t length = 0;
  int64_t size = 0;   // of a row
  int64_t begin = 0;  // where the first row is
  int64_t per_batch = 0;
  int64_t per_head = 0;
  int64_t per_row = 0;
};

// Where a node finds what it reads and writes, with inputs of certain shapes.
struct AttentionLayout {
  HeadsView q;
  HeadsView k;
  HeadsView v;
  HeadsView result;
  std::array<int64_t, 4> mask{};     // strides for the scores' dimensions, 0 where it is broadcast
  int64_t mask_batch = 1;            // after so many, its batches begin anew
  std::array<int64_t, 4> choices{};  // likewise
  Shape output;
  int64_t count = 0;  // of its elements
};

// False if the shapes do not fit the node; then `error` says why.
bool make_attention_layout(const Attention& node, const PlanKey& key, AttentionLayout* layout, std::string* error);

// How a node runs on the CPU.
struct AttentionPlan : AttentionLayout {
  PlanKey key;  // of the node's inputs

  int64_t heads = 0;   // of Q in a part of the work, which share a head of K and V
  int64_t splits = 0;  // parts of Q's rows, each with all of K and V
  int64_t rows = 0;    // of scores at once
  int64_t tasks = 0;
  bool copies_keys = false;  // or else each meets Q where it lies, and so do the values
  bool copies_values = false;

  int64_t padded_keys = 0;  // the length of K and the size of V's rows, in whole vectors
  int64_t padded_size = 0;
  int64_t panel = 0;      // keys side by side in memory, an element of each, then the next
  int64_t per_panel = 0;  // floats

  // Where a task has what in its memory, in floats, behind the keys.
  size_t values = 0;
  size_t key_offsets = 0;  // for the products: of an element of all keys of a panel, of a row of values
  size_t value_offsets = 0;
  size_t scores = 0;
  size_t results = 0;
  size_t factors = 0;  // of the rows
  size_t floats = 0;
};

// False if the shapes do not fit the node; then `error` says why.
bool make_attention_plan(const Attention& node, const PlanKey& key, AttentionPlan* plan, std::string* error);

// Throws Error if there is no memory.
void run_attention(const Attention& node, const AttentionPlan& plan, const std::vector<const void*>& inputs,
                   void* output, const Host& host);

}  // namespace onnxfuse

#endif  // ONNXFUSE_ATTENTION_H_
