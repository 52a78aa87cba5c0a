// Rows of tensors that other inputs of a Program name, gathered before it runs on the CPU.
#ifndef ONNXFUSE_NAMED_ROWS_H_
#define ONNXFUSE_NAMED_ROWS_H_

#include <vector>

#include "plan/plan.h"
#include "program/program.h"
#include "runtime/host.h"

namespace onnxfuse {

// The Program in which each input that is named rows of a tensor is a tensor of these, broadcast as they are.
Program without_named_rows(const Program& program);

// The tensors of such rows, for one run.
class NamedRows {
 public:
  // Gathers them, and puts them in the places of the tensors that they are of among `inputs`, of which `key` has the shapes.
  // Throws Error if there is no such row, or the shapes do not fit.
  NamedRows(const Host& host, const Program& program, const PlanKey& key, const void** inputs);

  // With their shapes.
  const PlanKey& key() const { return key_; }

 private:
  PlanKey key_;
  std::vector<RunMemory> rows_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_NAMED_ROWS_H_
