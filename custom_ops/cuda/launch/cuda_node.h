// What the operators on ONNX Runtime's CUDA provider have in common: the driver, the kernels that a node carries, and
// copies of tensors for what the CPU has to compute.
#ifndef ONNXFUSE_CUDA_NODE_H_
#define ONNXFUSE_CUDA_NODE_H_

#include <memory>
#include <string>
#include <vector>

#include "cuda/driver/cuda_driver.h"
#include "cuda/driver/cuda_kernels.h"
#include "ort/session_node.h"
#include "platform/error.h"
#include "runtime/host.h"
#include "runtime/node.h"

namespace onnxfuse::cuda {

// Runs `body` with the errors of the CUDA layer, which does not know ORT, turned into Errors.  Fail is what ORT's
// own kernels give; on ORT_EP_FAIL its Python package would go on, on the CPU alone.
template <class Body>
void translated(const Body& body) {
  try {
    body();
  } catch (const DriverError& error) {
    throw Error(error.what(), ErrorCode::Fail);
  } catch (const InvalidNode& error) {
    throw Error(error.what(), ErrorCode::InvalidGraph);
  }
}

// What a warning says of a node whose kernels cannot be used.
std::string on_the_cpu(const std::string& reason);

// The same of one that may not be computed on the CPU in their place: throws Error if ONNXFUSE_REQUIRE_GPU is 1, so that
// who measures kernels, or compares what they compute, does not do so with the CPU's results.
std::string refused(const std::string& reason);

CUdeviceptr address(const void* memory);

// The stream of a run; the default stream if null.
CUstream stream_of(const SessionRun& run);

class NodeDevice {
 public:
  // Throws Error if there is no driver.
  NodeDevice();

  // Reads the machine code of the node's attributes, and loads it if ORT has made its device's context current, which
  // it does when it creates a session: the first run may be captured as a CUDA graph, when nothing can be loaded.
  // Returns why the code does not fit the device, nothing if it does.  Throws InvalidNode or DriverError.
  std::string load(const AttributeSource& attributes, std::vector<KernelSignature> kernels);

  const Driver& driver() const { return *driver_; }

  // Null if the node carries none.
  NodeKernels* kernels() const { return kernels_.get(); }

  // These wait until the copy is done.  Throw DriverError.
  void copy_to_host(void* host, CUdeviceptr device, size_t bytes, CUstream stream) const;
  void copy_to_device(CUdeviceptr device, const void* host, size_t bytes, CUstream stream) const;

  // A copy on the device, in the order of the stream; waits for nothing.  Throws DriverError.
  void copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) const;

 private:
  const Driver* driver_ = nullptr;
  std::unique_ptr<NodeKernels> kernels_;
};

// Copies on the host of the tensors that a run reads, and of those that it writes.
class HostCopies {
 public:
  HostCopies(const NodeDevice& device, CUstream stream, const Host& host)
      : device_(device), stream_(stream), host_(host) {}

  const void* of_input(CUdeviceptr tensor, size_t bytes);

  // Memory whose contents finish() copies to `tensor`.
  void* for_output(CUdeviceptr tensor, size_t bytes);

  void finish() const;

 private:
  struct Result {
    CUdeviceptr tensor;
    size_t bytes;
    const void* host;
  };

  const NodeDevice& device_;
  const CUstream stream_;
  const Host& host_;
  std::vector<RunMemory> memory_;
  std::vector<Result> results_;
};

// Runs a Program's kernel of the CPU on copies of a run's tensors.  `output` gives the memory of output `o`, on the device.
template <class Kernel, class Output>
void compute_on_copies(const NodeDevice& device, CUstream stream, const Host& host, Kernel* kernel, const NodeInputs& inputs,
                       const Output& output) {
  const Program& program = kernel->program();
  HostCopies copies(device, stream, host);
  std::vector<const void*> data;
  for (size_t i = 0; i < inputs.data.size(); ++i) {
    data.push_back(copies.of_input(address(inputs.data[i]), bytes_of(inputs.key.shapes[i], program.values[i].type)));
  }
  std::vector<void*> outputs(tensor_count(program));
  kernel->compute(host, inputs.key, data.data(), outputs.data(), [&](size_t o, const Shape& shape, DType type) -> void* {
    return copies.for_output(address(output(o, shape, type)), bytes_of(shape, type));
  });
  copies.finish();
}

}  // namespace onnxfuse::cuda

#endif  // ONNXFUSE_CUDA_NODE_H_
