// A node's work in parts, which the host's threads share.
#ifndef ONNXFUSE_PARTS_H_
#define ONNXFUSE_PARTS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>

#include "runtime/host.h"

namespace onnxfuse {

// The first exception of several threads.
class FirstException {
 public:
  // Of the exception that is handled.
  void keep() noexcept {
    if (!kept_.exchange(true)) first_ = std::current_exception();
  }
  // Once all threads are done.
  void rethrow() const {
    if (first_ != nullptr) std::rethrow_exception(first_);
  }

 private:
  std::atomic<bool> kept_{false};
  std::exception_ptr first_;
};

// Calls part(i) for every i < count and returns when all are done, on several threads unless the work is `alone`.  No
// exception may get to the host's threads: throws the first of a part, whose result and others' are then incomplete.
template <class Part>
void run_parts(const Host& host, int64_t count, const Part& part, bool alone = false) {
  if (count == 1 || alone) {
    for (int64_t i = 0; i < count; ++i) part(i);
    return;
  }
  struct Shared {
    const Part& part;
    FirstException failure;
  } shared{part, {}};
  const auto run = [](void* data, size_t i) noexcept {
    auto& own = *static_cast<Shared*>(data);
    try {
      own.part(static_cast<int64_t>(i));
    } catch (...) {
      own.failure.keep();
    }
  };
  host.run_in_parallel(host.context, run, static_cast<size_t>(count), &shared);
  shared.failure.rethrow();
}

}  // namespace onnxfuse

#endif  // ONNXFUSE_PARTS_H_
