// Machine code in the driver.  Nodes and sessions whose code is equal share one module in each context.
#ifndef ONNXFUSE_CUDA_MODULE_H_
#define ONNXFUSE_CUDA_MODULE_H_

#include <memory>
#include <string>

#include "cuda/driver/cuda_driver.h"

namespace onnxfuse::cuda {

// Machine code, the same object for all that have the same bytes.
using Code = std::shared_ptr<const std::string>;
Code share_code(std::string bytes);

class Module {
 public:
  Module(const Driver& driver, CUcontext context, Code code, CUmodule handle);
  ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // Null if the module has no kernel of this name.  Its context is to be current.
  CUfunction find(const std::string& kernel) const;

  CUcontext context() const { return context_; }
  const Code& code() const { return code_; }

 private:
  const Driver& driver_;
  CUcontext context_;
  Code code_;
  CUmodule handle_;
};

// The module of `code` in `context`, loaded unless somebody has it already, and unloaded when its last user lets it go:
// a process that serves many models after one another would else fill the GPU with the code of all.  Null if the driver
// cannot use the code on this device, with the reason in `refusal`; throws DriverError if it fails otherwise.
std::shared_ptr<const Module> load_module(const Driver& driver, CUcontext context, const Code& code,
                                          std::string* refusal);

}  // namespace onnxfuse::cuda

#endif  // ONNXFUSE_CUDA_MODULE_H_
