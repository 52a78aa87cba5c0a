// What the fuzz drivers run kernels on.
#ifndef ONNXFUSE_FUZZ_HOST_H_
#define ONNXFUSE_FUZZ_HOST_H_

#include <cstddef>
#include <cstdlib>

#include "runtime/host.h"

namespace fuzz {

using namespace onnxfuse;

// One thread that runs units backwards, for no result may depend on the order; and memory of the heap.
inline const Host kHost{nullptr,
                        [](void*, void (*function)(void*, size_t), size_t total, void* data) {
                          while (total-- > 0) function(data, total);
                        },
                        [](void*, size_t bytes) { return std::malloc(bytes); },
                        [](void*, void* memory) { std::free(memory); }};

}  // namespace fuzz

#endif  // ONNXFUSE_FUZZ_HOST_H_
