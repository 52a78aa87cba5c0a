#include "cuda/driver/cuda_kernels.h"

#include <algorithm>
#include <utility>

#include "cuda/driver/cuda_context.h"
#include "cuda/driver/cuda_image.h"

namespace onnxfuse::cuda {
namespace {

struct Capability {
  int major = 0;
  int minor = 0;

  int number() const { return major * 10 + minor; }
  bool operator==(const Capability& other) const { return number() == other.number(); }
};

int attribute_of(const Driver& driver, CUdevice device, CUdevice_attribute attribute) {
  int value = 0;
  driver.check(driver.cuDeviceGetAttribute(&value, attribute, device), "cuDeviceGetAttribute");
  return value;
}

Capability capability_of(const Driver& driver, CUdevice device) {
  return {attribute_of(driver, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
          attribute_of(driver, device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)};
}

std::string to_string(const Capability& capability) {
  return std::to_string(capability.major) + "." + std::to_string(capability.minor);
}

}  // namespace

NodeKernels::NodeKernels(const Driver& driver, std::vector<KernelSignature> kernels,
                         const ReadAttribute& read_attribute)
    : driver_(driver), kernels_(std::move(kernels)) {
  std::vector<int> seen;
  const auto add = [&](const std::string& attribute, Capability capability, auto is_whole) {
    std::string bytes;
    std::string error;
    if (!read_attribute(attribute, &bytes)) return;
    if (!is_whole(bytes, &error)) throw InvalidNode("the attribute " + attribute + " is not valid: " + error);
    images_.push_back({attribute, capability.major, capability.minor, share_code(std::move(bytes))});
  };
  int devices = 0;
  driver.check(driver.cuDeviceGetCount(&devices), "cuDeviceGetCount");
  for (int ordinal = 0; ordinal < devices; ++ordinal) {
    CUdevice device = 0;
    driver.check(driver.cuDeviceGet(&device, ordinal), "cuDeviceGet");
    // Code for an earlier minor version of the same major one runs too.
    for (Capability capability = capability_of(driver, device); capability.minor >= 0; --capability.minor) {
      if (std::find(seen.begin(), seen.end(), capability.number()) != seen.end()) continue;
      seen.push_back(capability.number());
      add("cuda_sm_" + std::to_string(capability.number()), capability, is_whole_cubin);
    }
  }
  add("cuda_ptx", {}, is_whole_ptx);
  std::stable_sort(images_.begin(), images_.end(), [](const Image& a, const Image& b) {
    return std::pair(a.major, a.minor) > std::pair(b.major, b.minor);
  });
}

const ContextKernels& NodeKernels::in(CUcontext context) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& kernels : contexts_) {
    if (kernels->context == context) return *kernels;
  }
  contexts_.push_back(load(context));
  return *contexts_.back();
}

std::unique_ptr<ContextKernels> NodeKernels::load(CUcontext context) const {
  const ScopedContext current(driver_, context);
  auto kernels = std::make_unique<ContextKernels>();
  kernels->context = context;
  CUdevice device = 0;
  driver_.check(driver_.cuCtxGetDevice(&device), "cuCtxGetDevice");
  kernels->multiprocessors = attribute_of(driver_, device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  const Capability capability = capability_of(driver_, device);
  for (const Image& image : images_) {
    const bool ptx = image.major == 0;
    if (!ptx && (image.major != capability.major || image.minor > capability.minor)) continue;
    std::string refusal;
    kernels->module = load_module(driver_, context, image.code, &refusal);
    if (kernels->module != nullptr) {
      find_functions(kernels.get(), image.attribute);
      return kernels;
    }
    kernels->refusal += (kernels->refusal.empty() ? "" : "; ") + image.attribute + ": " + refusal;
  }
  if (kernels->refusal.empty()) {
    kernels->refusal = "it has no machine code for compute capability " + to_string(capability) + ", and no PTX";
  }
  return kernels;
}

void NodeKernels::find_functions(ContextKernels* kernels, const std::string& attribute) const {
  for (const KernelSignature& kernel : kernels_) {
    const CUfunction function = kernels->module->find(kernel.name);
    if (function == nullptr) {
      throw InvalidNode("the attribute " + attribute + " holds no kernel '" + kernel.name + "' of the recipe");
    }
    check_function(kernel, function, attribute);
    kernels->functions.push_back(function);
  }
}

// Whether the compiled kernel is the one that the recipe speaks of, as far as the driver can tell.
void NodeKernels::check_function(const KernelSignature& kernel, CUfunction function,
                                 const std::string& attribute) const {
  const std::string where = "the kernel '" + kernel.name + "' of the attribute " + attribute;
  int threads = 0;
  driver_.check(driver_.cuFuncGetAttribute(&threads, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, function),
                "cuFuncGetAttribute");
  if (threads < static_cast<int>(kernel.block)) {
    throw InvalidNode(where + " runs on blocks of at most " + std::to_string(threads) + " threads, not of " +
                      std::to_string(kernel.block));
  }
  if (driver_.cuFuncGetParamInfo == nullptr) return;  // before CUDA 12.4
  const std::vector<Parameter>& expected = kernel.parameters;
  for (size_t p = 0; p <= expected.size(); ++p) {
    size_t offset = 0;
    size_t bytes = 0;
    const CUresult result = driver_.cuFuncGetParamInfo(function, p, &offset, &bytes);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_INVALID_VALUE) driver_.check(result, "cuFuncGetParamInfo");
    const bool exists = result == CUDA_SUCCESS;
    const bool same = p == expected.size() ? !exists
                                           : exists && offset == expected[p].offset && bytes == expected[p].bytes;
    if (same) continue;
    throw InvalidNode(where + " has other parameters than its recipe, from number " + std::to_string(p) + " on");
  }
}

void launch_kernel(const Driver& driver, const ContextKernels& kernels, const Launch& launch, CUstream stream) {
  size_t bytes = launch.bytes;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, launch.parameters, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  const ScopedContext current(driver, kernels.context);
  const CUresult result = driver.cuLaunchKernel(kernels.functions[launch.number], static_cast<unsigned>(launch.blocks),
                                                1, 1, launch.threads, 1, 1, 0, stream, nullptr, extra);
  if (result == CUDA_SUCCESS) return;
  throw DriverError("cuLaunchKernel of " + launch.name + " on " + std::to_string(launch.blocks) + " blocks of " +
                    std::to_string(launch.threads) + " threads: " + driver.describe(result));
}

}  // namespace onnxfuse::cuda
