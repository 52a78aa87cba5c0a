#include "platform/forks.h"

#include <cstddef>
#include <cstdint>

#include "platform/system.h"

namespace onnxfuse {
namespace {

constexpr size_t kMutexes = 8;

std::mutex g_mutexes[kMutexes];
std::atomic<unsigned> g_forks{0};

void lock_all() {
  for (std::mutex& mutex : g_mutexes) mutex.lock();
}

void unlock_all() {
  for (std::mutex& mutex : g_mutexes) mutex.unlock();
}

// From when the library is loaded.
[[maybe_unused]] const bool g_registered = [] {
  at_fork(lock_all, unlock_all, [] {
    g_forks.fetch_add(1, std::memory_order_relaxed);
    unlock_all();
  });
  return true;
}();

}  // namespace

unsigned forks() { return g_forks.load(std::memory_order_relaxed); }

std::mutex& mutex_of(const void* object) {
  const auto address = reinterpret_cast<uintptr_t>(object);
  return g_mutexes[(address / 64 ^ address / 4096) % kMutexes];
}

}  // namespace onnxfuse
