// What the fuzz drivers run kernels on.
#ifndef ONNXFUSE_FUZZ_HOST_H_
#define ONNXFUSE_FUZZ_HOST_H_

#include <algorithm>
#include <cstddef>
#include <cstdlib>

#include "executable/thread_pool.h"
#include "runtime/host.h"

namespace fuzz {

using namespace onnxfuse;

// One thread that runs units backwards, for no result may depend on the order; and memory of the heap.
inline const Host kBackwards{nullptr,
                             [](void*, void (*function)(void*, size_t), size_t total, void* data) {
                               while (total-- > 0) function(data, total);
                             },
                             [](void*, size_t bytes) { return std::malloc(bytes); },
                             [](void*, void* memory) { std::free(memory); }};

// Units on threads of the library's own, in any order.
inline Host threaded_host(size_t threads) {
  static const auto pool = ThreadPool::of(threads);
  Host host = kBackwards;
  host.context = pool.get();
  host.run_in_parallel = [](void* context, void (*function)(void*, size_t), size_t total, void* data) {
    static_cast<ThreadPool*>(context)->run(function, total, data);
  };
  return host;
}

// As many threads as the environment variable ONNXFUSE_FUZZ_THREADS says, one by default.
inline size_t threads_asked_for() {
  const char* const text = std::getenv("ONNXFUSE_FUZZ_THREADS");
  return text == nullptr ? 1 : static_cast<size_t>(std::clamp(std::atol(text), 1L, 64L));
}

inline const Host kHost = threads_asked_for() == 1 ? kBackwards : threaded_host(threads_asked_for());

}  // namespace fuzz

#endif  // ONNXFUSE_FUZZ_HOST_H_
