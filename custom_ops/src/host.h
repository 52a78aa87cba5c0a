// What a kernel on the CPU is given by whoever runs it: threads, and memory for one run.
#ifndef ONNXFUSE_HOST_H_
#define ONNXFUSE_HOST_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "workspace.h"

namespace onnxfuse {

struct Host {
  void* context;
  // Calls function(data, i) for every i < total, perhaps on several threads, and returns when all are done.
  void (*run_in_parallel)(void* context, void (*function)(void*, size_t), size_t total, void* data);
  // At least so many bytes; null if there is none.
  void* (*allocate)(void* context, size_t bytes);
  void (*release)(void* context, void* memory);
  // How much the calling thread does, as costs are reckoned, before other threads begin.
  double lead_nanoseconds = 0.0;
};

// Memory for one run, aligned to a cache line; none for 0 bytes.  Much of it is the host's, which other nodes' tensors have
// before and after the run; for less it is not worth asking.
class RunMemory {
 public:
  RunMemory() = default;
  // Throws Error if there is no memory.
  RunMemory(const Host& host, size_t bytes);
  ~RunMemory();
  RunMemory(RunMemory&& other) noexcept
      : host_(std::exchange(other.host_, nullptr)),
        allocated_(std::exchange(other.allocated_, nullptr)),
        data_(std::exchange(other.data_, nullptr)),
        little_(std::move(other.little_)) {}
  RunMemory& operator=(RunMemory&&) = delete;

  void* data() const { return data_; }

 private:
  const Host* host_ = nullptr;
  void* allocated_ = nullptr;
  void* data_ = nullptr;
  Workspace little_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_HOST_H_
