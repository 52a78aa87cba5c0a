// What a kernel on the CPU is given by whoever runs it: threads, and memory for one run.
#ifndef ONNXFUSE_HOST_H_
#define ONNXFUSE_HOST_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/workspace.h"

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

// Whether so many bytes at two places have any in common.
inline bool overlap(const void* a, size_t a_bytes, const void* b, size_t b_bytes) {
  const auto first = reinterpret_cast<uintptr_t>(a);
  const auto second = reinterpret_cast<uintptr_t>(b);
  return std::max(first, second) < std::min(first + a_bytes, second + b_bytes);
}

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

// The outputs of a run that overlap earlier ones, as a session's bindings may have it: they are computed elsewhere and copied
// when all is computed, so that each is whole but for what a later one has of it.
class OverlappingOutputs {
 public:
  // Puts another place in that of each of those; bytes(o) is the size of output `o`.  Throws Error if there is no memory.
  template <class Bytes>
  OverlappingOutputs(const Host& host, void** outputs, size_t count, const Bytes& bytes) {
    for (size_t o = 1; o < count; ++o) {
      bool overlaps = false;
      for (size_t before = 0; before < o; ++before) {
        overlaps = overlaps || overlap(outputs[before], bytes(before), outputs[o], bytes(o));
      }
      for (const Output& other : outputs_) {
        overlaps = overlaps || overlap(other.wanted, other.bytes, outputs[o], bytes(o));
      }
      if (overlaps) move(host, bytes(o), &outputs[o]);
    }
  }

  void copy() const;

 private:
  struct Output {
    void* wanted;
    size_t bytes;
    RunMemory memory;
  };

  void move(const Host& host, size_t bytes, void** output);

  std::vector<Output> outputs_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_HOST_H_
