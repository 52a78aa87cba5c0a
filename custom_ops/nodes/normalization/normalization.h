// A normalization of rows along the last axis, of what a Program makes of its inputs or of one input itself:
// LayerNormalization, or where it is not centered RMSNormalization.
//
// Inputs: those of the Program, or X; the scale [size of a row], and perhaps the bias [size of a row].  Outputs: the
// result, and perhaps what is normalized.  All but inputs of the Program are float32.
#ifndef ONNXFUSE_NORMALIZATION_H_
#define ONNXFUSE_NORMALIZATION_H_

#include <memory>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "program/attribute_source.h"
#include "program/program.h"
#include "runtime/executor.h"

namespace onnxfuse {

struct Normalization {
  bool has_program = false;
  Program program;
  bool centered = true;
  bool has_bias = false;
  bool keeps = false;  // what is normalized is an output too
  float epsilon = 0;

  // Places among the inputs.
  size_t scale() const { return has_program ? program.input_count : 1; }
  size_t bias() const { return scale() + 1; }
};

// Reads and validates the attributes of a node with this many inputs; nothing in them is trusted.  On failure returns
// false and sets `error`.
bool read_normalization(const AttributeSource& source, size_t inputs, Normalization* node, std::string* error);

// How a node runs on inputs of certain shapes.
struct NormalizationPlan {
  PlanKey key;  // of the node's inputs
  Shape output;
  int64_t rows = 0;
  int64_t size = 0;                // elements of a row
  std::shared_ptr<const Plan> program;
  bool by_rows = false;            // the Program can be run on some of the rows
  int64_t rows_at_once = 1;        // that stay in the level 1 cache
  int64_t tasks = 1;
};

// False if the shapes do not fit the node; then `error` says why.
bool make_normalization_plan(const Normalization& node, const PlanKey& key, NormalizationPlan* plan, std::string* error);

// `normalized` is where what the Program makes goes, null if nobody reads that.  Throws Error if there is no memory.
void run_normalization(const Normalization& node, const NormalizationPlan& plan, const std::vector<const void*>& inputs,
                       void* output, void* normalized, const Host& host);

}  // namespace onnxfuse

#endif  // ONNXFUSE_NORMALIZATION_H_
