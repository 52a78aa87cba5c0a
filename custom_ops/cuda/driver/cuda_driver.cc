#include "cuda/driver/cuda_driver.h"

#include <cstdlib>

#include "platform/system.h"

namespace onnxfuse::cuda {
namespace {

struct Opened {
  Driver driver;
  std::string error;  // empty if the driver works
};

bool load(Driver* driver, std::string* error) {
  const char* const chosen = std::getenv("ONNXFUSE_LIBCUDA");
  const std::string path = chosen != nullptr ? chosen : kCudaDriver;
  std::string reason;
  void* const library = open_library(path.c_str(), &reason);  // never closed: modules outlive every session
  if (library == nullptr) {
    *error = "the CUDA driver cannot be opened: " + reason;
    return false;
  }
  const char* missing = nullptr;
#define ONNXFUSE_CUDA_FIND(name, version, parameters) \
  driver->name = reinterpret_cast<decltype(driver->name)>(find_export(library, #name #version));
#define ONNXFUSE_CUDA_NEED(name, version, parameters) \
  ONNXFUSE_CUDA_FIND(name, version, parameters)       \
  if (driver->name == nullptr) missing = #name #version;
  ONNXFUSE_CUDA_FUNCTIONS(ONNXFUSE_CUDA_NEED, ONNXFUSE_CUDA_FIND)
#undef ONNXFUSE_CUDA_NEED
#undef ONNXFUSE_CUDA_FIND
  if (missing != nullptr) *error = "the CUDA driver " + path + " has no function " + missing;
  return missing == nullptr;
}

Opened* open() {
  auto* opened = new Opened;
  if (!load(&opened->driver, &opened->error)) return opened;
  const CUresult result = opened->driver.cuInit(0);
  if (result != CUDA_SUCCESS) opened->error = "cuInit: " + opened->driver.describe(result);
  return opened;
}

}  // namespace

std::string Driver::describe(CUresult result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (cuGetErrorName(result, &name) != CUDA_SUCCESS || name == nullptr) return "CUDA error " + std::to_string(result);
  if (cuGetErrorString(result, &text) != CUDA_SUCCESS || text == nullptr) return name;
  return std::string(name) + ": " + text;
}

void Driver::check(CUresult result, const char* function) const {
  if (result != CUDA_SUCCESS) throw DriverError(std::string(function) + ": " + describe(result));
}

const Driver* open_driver(std::string* error) {
  static const Opened& opened = *open();  // never destroyed: sessions may outlive static objects
  if (opened.error.empty()) return &opened.driver;
  *error = opened.error;
  return nullptr;
}

}  // namespace onnxfuse::cuda
