// The tensors of a run that overlap, as a session's bindings may have it: kernels read inputs while they write outputs, and
// write all outputs at once.
#ifndef ONNXFUSE_CUDA_OVERLAP_H_
#define ONNXFUSE_CUDA_OVERLAP_H_

#include <cstddef>
#include <optional>
#include <vector>

#include "cuda/driver/cuda_driver.h"
#include "cuda/launch/cuda_workspace.h"
#include "ort/session_node.h"

namespace onnxfuse::cuda {

class NodeDevice;

// The memory of a tensor.
struct Extent {
  size_t bytes = 0;
  // Bytes of an element if a thread reads, or writes, those alone whose numbers are its elements' of the space.  It has read
  // all before it writes any, so that such an input and output may be in the same memory.  Else 0.
  size_t in_place = 0;
};

class Overlap {
 public:
  // Where an input overlaps an output, a copy of it takes its place among the addresses; where an output overlaps an earlier
  // one, other memory does.  The first `inputs` of them are of inputs, the others of outputs.  Throws OrtFailure or
  // DriverError.
  Overlap(const SessionRun& run, const NodeDevice& device, CUstream stream, size_t inputs,
          const std::vector<Extent>& extents, std::vector<CUdeviceptr>* addresses);

  // Copies results to where they are wanted, one output after the other: of what two share, the later has all.  To be called
  // when the kernels are launched; waits for nothing.  Throws DriverError.
  void copy_results() const;

 private:
  struct Copy {
    CUdeviceptr to;
    CUdeviceptr from;
    size_t bytes;
  };

  const NodeDevice& device_;
  const CUstream stream_;
  std::optional<Workspace> memory_;
  std::vector<Copy> results_;
};

}  // namespace onnxfuse::cuda

#endif  // ONNXFUSE_CUDA_OVERLAP_H_
