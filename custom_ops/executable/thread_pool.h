// Threads of the library's own, for models that run without ONNX Runtime: in a session its threads do the work.
#ifndef ONNXFUSE_THREAD_POOL_H_
#define ONNXFUSE_THREAD_POOL_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace onnxfuse {

// Each thread has a share of the work, the same one from run to run, so that it finds its part of the tensors in its own
// caches; who is done with it takes from the ends of the others', which are the same parts as long as the same threads are
// slower.  Threads wait for work for a millisecond before they sleep.
class ThreadPool {
 public:
  // The pool of so many threads, the caller's among them, that all who ask for as many share.
  static std::shared_ptr<ThreadPool> of(size_t threads);

  explicit ThreadPool(size_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Calls function(data, i) for every i < total, on as many threads, and returns when all are done.  While another thread is
  // here, and in a child that a fork has left without the other threads, the caller does it all.
  void run(void (*function)(void*, size_t), size_t total, void* data);

 private:
  // What tells a thread of its work, on a cache line of its own; processors fetch two.
  struct alignas(128) Share {
    std::atomic<uint64_t> range{0};  // the first and the last index that nobody has taken: 32 bits each, the last higher up
    void (*function)(void*, size_t) = nullptr;  // of whoever has taken an index
    void* data = nullptr;
    std::atomic<bool> asleep{false};  // written with the mutex
    std::condition_variable wake;
  };

  void work(size_t self);
  bool wait(Share* own);
  void wake(size_t active);
  size_t take_all(size_t own);
  static size_t take(Share* share, bool is_own);
  static bool is_empty(uint64_t range);

  const unsigned forks_;
  std::vector<Share> shares_;  // the first is that of the thread that calls
  alignas(128) std::atomic<size_t> remaining_{0};  // parts that are not done
  std::atomic<size_t> active_{0};                  // shares that are not empty from the beginning
  alignas(128) std::atomic<bool> busy_{false};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::vector<std::thread> threads_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_THREAD_POOL_H_
