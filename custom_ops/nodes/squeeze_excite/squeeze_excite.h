// The gate of a squeeze-and-excitation block: the means of each image's channels, a matrix product with a Program for
// its result, and another one.
//
// Inputs: X [N, C, spatial…], or [N, spatial…, C] where the node says so, W1 [R, C, 1…], the first Program's operands after the product, W2 [M, R, 1…], the second
// Program's operands after the product.  The output is [N, M, 1…].  All but operands are float32.
#ifndef ONNXFUSE_SQUEEZE_EXCITE_H_
#define ONNXFUSE_SQUEEZE_EXCITE_H_

#include <memory>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "program/attribute_source.h"
#include "program/program.h"
#include "runtime/executor.h"

namespace onnxfuse {

struct SqueezeExcite {
  bool nhwc = false;  // X is [N, spatial…, C]
  Program squeeze;  // for the first product, of R results
  Program excite;   // for the second, of M

  // Places among the inputs.
  size_t squeeze_operands() const { return 2; }
  size_t excite_weights() const { return squeeze_operands() + squeeze.input_count - 1; }
  size_t excite_operands() const { return excite_weights() + 1; }
  size_t inputs() const { return excite_operands() + excite.input_count - 1; }
};

// Reads and validates the attributes of a node with this many inputs; nothing in them is trusted.  On failure returns
// false and sets `error`.
bool read_squeeze_excite(const AttributeSource& source, size_t inputs, SqueezeExcite* node, std::string* error);

// How a node runs on inputs of certain shapes.
struct SqueezeExcitePlan {
  PlanKey key;  // of the node's inputs
  int64_t batch = 0;
  int64_t channels = 0;  // C
  int64_t size = 0;      // elements of a channel of X
  int64_t squeezed = 0;  // R
  int64_t excited = 0;   // M
  Shape output;
  std::shared_ptr<const Plan> squeeze;  // of the Programs
  std::shared_ptr<const Plan> excite;

  // Where a run has what in its memory, in bytes, behind the means.
  size_t products = 0;  // of either matrix
  size_t gated = 0;     // the first Program's result
  size_t operands = 0;  // pointers to what a Program reads
  size_t scratch = 0;   // of a Program
  size_t bytes = 0;
};

// False if the shapes do not fit the node; then `error` says why.
bool make_squeeze_excite_plan(const SqueezeExcite& node, const PlanKey& key, SqueezeExcitePlan* plan,
                              std::string* error);

// Throws Error if there is no memory.
void run_squeeze_excite(const SqueezeExcite& node, const SqueezeExcitePlan& plan, const std::vector<const void*>& inputs,
                        void* output, const Host& host);

}  // namespace onnxfuse

#endif  // ONNXFUSE_SQUEEZE_EXCITE_H_
