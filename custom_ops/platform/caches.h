// How large the processor's caches are, in bytes: what the system says, within limits, or else a guess.
#ifndef ONNXFUSE_CACHES_H_
#define ONNXFUSE_CACHES_H_

#include <cstdint>

namespace onnxfuse {

// Those of one core.
int64_t level1_bytes();
int64_t level2_bytes();

// All caches together: what is larger is not worth keeping in them.  The environment variable ONNXFUSE_CACHE_BYTES sets
// another size, so that tests reach with small tensors what is for large ones.
int64_t last_level_bytes();

}  // namespace onnxfuse

#endif  // ONNXFUSE_CACHES_H_
