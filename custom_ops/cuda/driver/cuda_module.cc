#include "cuda/driver/cuda_module.h"

#include <algorithm>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "cuda/driver/cuda_context.h"

namespace onnxfuse::cuda {
namespace {

// Shared by all sessions of the process, and never destroyed because sessions may outlive static objects.
struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<const std::string>> codes;
  std::vector<std::weak_ptr<const Module>> modules;
};

Registry& registry() {
  static Registry& shared = *new Registry;
  return shared;
}

constexpr CUresult kUnusable[] = {
    CUDA_ERROR_INVALID_IMAGE,           CUDA_ERROR_NO_BINARY_FOR_GPU,        CUDA_ERROR_INVALID_PTX,
    CUDA_ERROR_JIT_COMPILER_NOT_FOUND,  CUDA_ERROR_UNSUPPORTED_PTX_VERSION,  CUDA_ERROR_JIT_COMPILATION_DISABLED,
    CUDA_ERROR_INVALID_SOURCE,
};

// The first line of the compiler's messages on PTX.
std::string first_line(const std::string& log) {
  const size_t begin = log.find_first_not_of(std::string_view("\0\n ", 3));
  if (begin == std::string::npos) return "";
  return " (" + log.substr(begin, log.find_first_of(std::string_view("\0\n", 2), begin) - begin) + ")";
}

template <class T>
void drop_expired(std::vector<T>* entries) {
  entries->erase(std::remove_if(entries->begin(), entries->end(), [](const T& entry) { return entry.expired(); }),
                 entries->end());
}

}  // namespace

Code share_code(std::string bytes) {
  Registry& shared = registry();
  const std::lock_guard<std::mutex> lock(shared.mutex);
  drop_expired(&shared.codes);
  for (const auto& entry : shared.codes) {
    const Code code = entry.lock();
    if (code != nullptr && *code == bytes) return code;
  }
  auto code = std::make_shared<const std::string>(std::move(bytes));
  shared.codes.push_back(code);
  return code;
}

Module::Module(const Driver& driver, CUcontext context, Code code, CUmodule handle)
    : driver_(driver), context_(context), code_(std::move(code)), handle_(handle) {}

// Fails, harmlessly, if the process or the user of the context has torn it down before.
Module::~Module() {
  try {
    const ScopedContext current(driver_, context_);
    driver_.cuModuleUnload(handle_);
  } catch (const DriverError&) {
  }
}

CUfunction Module::find(const std::string& kernel) const {
  CUfunction function = nullptr;
  const CUresult result = driver_.cuModuleGetFunction(&function, handle_, kernel.c_str());
  if (result == CUDA_ERROR_NOT_FOUND) return nullptr;
  driver_.check(result, "cuModuleGetFunction");
  return function;
}

std::shared_ptr<const Module> load_module(const Driver& driver, CUcontext context, const Code& code,
                                          std::string* refusal) {
  Registry& shared = registry();
  // Held while the driver loads, so that nobody loads the same a second time.
  const std::lock_guard<std::mutex> lock(shared.mutex);
  drop_expired(&shared.modules);
  for (const auto& entry : shared.modules) {
    const auto module = entry.lock();
    if (module != nullptr && module->context() == context && module->code() == code) return module;
  }
  const ScopedContext current(driver, context);
  std::string log(4096, '\0');
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log.data(), reinterpret_cast<void*>(log.size())};
  CUmodule handle = nullptr;
  const CUresult result = driver.cuModuleLoadDataEx(&handle, code->c_str(), 2, options, values);
  if (std::find(std::begin(kUnusable), std::end(kUnusable), result) != std::end(kUnusable)) {
    *refusal = driver.describe(result) + first_line(log);
    return nullptr;
  }
  driver.check(result, "cuModuleLoadDataEx");
  auto module = std::make_shared<const Module>(driver, context, code, handle);
  shared.modules.push_back(module);
  return module;
}

}  // namespace onnxfuse::cuda
