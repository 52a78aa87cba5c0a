// Types and shapes of a node's inputs and outputs while ORT resolves a graph.
#ifndef ONNXFUSE_SYMBOLIC_SHAPE_H_
#define ONNXFUSE_SYMBOLIC_SHAPE_H_

#include <string>
#include <vector>

#include "ort/ort_abi.h"
#include "program/attribute_source.h"
#include "program/dtype.h"

namespace onnxfuse {

// A dimension while shapes are not known yet: a size, a name, or neither.
struct Dim {
  int64_t size = -1;
  std::string name;
};

struct SymbolicShape {
  bool known = false;  // the rank
  std::vector<Dim> dims;
};

// The node whose outputs' types and shapes ORT asks for.  Functions throw OrtFailure.
class InferenceNode {
 public:
  InferenceNode(const OrtApi& api, OrtShapeInferContext* context) : api_(api), context_(context) {}

  size_t input_count() const;

  // Returns the ONNX element type.
  int input(size_t index, SymbolicShape* shape) const;

  // Leaves the type of an output of unknown rank to the model's value_info: ORT would take its shape for a scalar.
  void set_output(size_t index, DType type, const SymbolicShape& shape) const;

  // The node's attributes, as long as this lives.
  AttributeSource attributes() const;

 private:
  bool text(const char* name, std::string* text) const;
  bool number(const char* name, int64_t* number) const;
  bool numbers(const char* name, std::vector<int64_t>* numbers) const;
  const OrtOpAttr* attribute(const char* name) const;

  const OrtApi& api_;
  OrtShapeInferContext* context_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_SYMBOLIC_SHAPE_H_
