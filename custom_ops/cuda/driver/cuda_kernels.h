// The kernels of one fused node on the GPUs that it runs on.
#ifndef ONNXFUSE_CUDA_KERNELS_H_
#define ONNXFUSE_CUDA_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/driver/cuda_driver.h"
#include "cuda/driver/cuda_module.h"

namespace onnxfuse::cuda {

// A node or its machine code is not as it should be.
class InvalidNode : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A parameter's place in the block of memory that a launch passes.
struct Parameter {
  size_t offset;
  size_t bytes;
};

// A kernel as its recipe says it is.
struct KernelSignature {
  std::string name;
  uint32_t block;  // threads
  std::vector<Parameter> parameters;
};


// The kernels in one context, or why there are none.
struct ContextKernels {
  CUcontext context = nullptr;
  int64_t multiprocessors = 0;
  std::shared_ptr<const Module> module;
  std::vector<CUfunction> functions;   // of the kernels, in their order; empty if no code of the node fits the device
  std::string refusal;                 // then why
};

// Sets `bytes` to the node's attribute of that name; false if it has none.
using ReadAttribute = std::function<bool(const std::string& name, std::string* bytes)>;

class NodeKernels {
 public:
  // Reads the machine code for each device of this machine.  Throws InvalidNode or DriverError.
  NodeKernels(const Driver& driver, std::vector<KernelSignature> kernels, const ReadAttribute& read_attribute);

  // The kernels in `context`, loaded on the first call for it; any number of threads may call.  Throws InvalidNode or
  // DriverError.
  const ContextKernels& in(CUcontext context);

 private:
  struct Image {
    std::string attribute;
    int major = 0;  // compute capability; 0 for PTX, which is tried last
    int minor = 0;
    Code code;
  };

  std::unique_ptr<ContextKernels> load(CUcontext context) const;
  void find_functions(ContextKernels* kernels, const std::string& attribute) const;
  void check_function(const KernelSignature& kernel, CUfunction function, const std::string& attribute) const;

  const Driver& driver_;
  const std::vector<KernelSignature> kernels_;
  std::vector<Image> images_;  // newest architecture first
  std::mutex mutex_;
  std::vector<std::unique_ptr<ContextKernels>> contexts_;
};

// One launch: `number` is the kernel's among the functions of a context, `parameters` what its signature describes.
struct Launch {
  size_t number;
  const std::string& name;
  int64_t blocks;
  uint32_t threads;  // of a block
  void* parameters;
  size_t bytes;
};

// Allocates nothing and waits for nothing, so that a CUDA graph can capture it.  Throws DriverError.
void launch_kernel(const Driver& driver, const ContextKernels& kernels, const Launch& launch, CUstream stream);

}  // namespace onnxfuse::cuda

#endif  // ONNXFUSE_CUDA_KERNELS_H_
