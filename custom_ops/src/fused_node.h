// A fused node as ORT shows it to the library: its name, its Program, and the tensors of a run.
#ifndef ONNXFUSE_FUSED_NODE_H_
#define ONNXFUSE_FUSED_NODE_H_

#include <string>
#include <vector>

#include "ort_abi.h"
#include "plan.h"
#include "program_kernel.h"

namespace onnxfuse {

// "onnxfuse::FusedElementwise node 'name': ", with which every message about a node begins.
std::string place(const std::string& name);

// The tensors that a run gives a node.
struct NodeInputs {
  PlanKey key;                    // their shapes
  std::vector<int> types;         // ONNX element types
  std::vector<const void*> data;  // on the provider's device
};

// What the operators of all providers have in common.  Functions throw Error or OrtFailure.
class FusedNode {
 public:
  FusedNode(const OrtApi* api, const OrtKernelInfo* info);

  static std::string node_name(const OrtApi* api, const OrtKernelInfo* info);

  const OrtApi* api() const { return api_; }
  const std::string& name() const { return name_; }

 protected:
  NodeInputs read_inputs(const OrtKernelContext* context) const;

  // The memory of output `o`, on the provider's device.
  void* output(OrtKernelContext* context, size_t o, const Shape& shape) const;

  // The CPU's kernel for inputs of these types.
  ProgramKernel& kernel_for(const std::vector<int>& types);

  // The kernel of the Program to the letter.
  ProgramKernel& as_written() { return as_written_; }

 private:
  FusedNode(const OrtApi* api, const OrtKernelInfo* info, Program program);

  int read_input(const OrtKernelContext* context, size_t i, Shape* shape, const void** data) const;

  const OrtApi* api_;
  std::string name_;
  ProgramKernel widened_;  // for a node whose float16 tensors ORT has made float
  ProgramKernel as_written_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_FUSED_NODE_H_
