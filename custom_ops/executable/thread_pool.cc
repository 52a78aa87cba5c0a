#include "executable/thread_pool.h"

#include <algorithm>
#include <cfenv>
#include <chrono>
#include <exception>
#include <map>
#include <utility>

#include "platform/forks.h"

namespace onnxfuse {
namespace {

constexpr std::chrono::milliseconds kAwake{1};
constexpr int kPausesPerLook = 64;  // at the clock

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

// By the forks before them and the threads.
using Pools = std::map<std::pair<unsigned, size_t>, std::weak_ptr<ThreadPool>>;

}  // namespace

std::shared_ptr<ThreadPool> ThreadPool::of(size_t threads) {
  static Once<Pools> made;
  Pools& pools = made.get([] { return Pools(); });
  const std::lock_guard<std::mutex> lock(mutex_of(&pools));
  std::weak_ptr<ThreadPool>& known = pools[{forks(), threads}];
  std::shared_ptr<ThreadPool> pool = known.lock();
  if (pool != nullptr) return pool;
  // In a child of a fork the threads are the parent's, and what they wait on cannot be destroyed.
  const auto release = [](ThreadPool* own) {
    if (own->forks_ == forks()) delete own;
  };
  known = pool = std::shared_ptr<ThreadPool>(new ThreadPool(threads), release);
  return pool;
}

ThreadPool::ThreadPool(size_t threads) : forks_(forks()), shares_(threads) {
  threads_.reserve(threads);
  try {
    for (size_t i = 1; i < threads; ++i) threads_.emplace_back([this, i] { work(i); });
  } catch (const std::exception&) {
    // The system gives no more threads: those that are there take the shares of the others.
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_.store(true);
  }
  for (Share& share : shares_) share.wake.notify_one();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(void (*function)(void*, size_t), size_t total, void* data) {
  const size_t active = std::min(shares_.size(), total);
  if (active < 2 || total > UINT32_MAX || forks_ != forks() || busy_.exchange(true, std::memory_order_acquire)) {
    for (size_t i = 0; i < total; ++i) function(data, i);
    return;
  }
  remaining_.store(total, std::memory_order_relaxed);
  active_.store(active, std::memory_order_relaxed);
  for (size_t t = active; t-- > 0;) {
    shares_[t].function = function;
    shares_[t].data = data;
    shares_[t].range.store(total * (t + 1) / active << 32 | total * t / active, std::memory_order_seq_cst);
  }
  wake(active);
  remaining_.fetch_sub(take_all(0), std::memory_order_acq_rel);
  for (int looks = 0; remaining_.load(std::memory_order_acquire) > 0; ++looks) {
    pause();
    if (looks > kPausesPerLook) std::this_thread::yield();  // perhaps to the thread that is awaited
  }
  busy_.store(false, std::memory_order_release);
}

// Those that sleep and have a share.
void ThreadPool::wake(size_t active) {
  for (size_t t = 1; t < active; ++t) {
    if (!shares_[t].asleep.load(std::memory_order_seq_cst)) continue;
    const std::lock_guard<std::mutex> lock(mutex_);  // it is not between looking at its share and falling asleep
    shares_[t].wake.notify_one();
  }
}

void ThreadPool::work(size_t self) {
  std::fesetenv(FE_DFL_ENV);  // whatever the thread that made the pool does with denormals
  while (wait(&shares_[self])) {
    if (const size_t done = take_all(self)) remaining_.fetch_sub(done, std::memory_order_acq_rel);
  }
}

// Until the share is not empty; false when there will be no more work.
bool ThreadPool::wait(Share* own) {
  const auto ready = [&] { return !is_empty(own->range.load(std::memory_order_seq_cst)) || stop_.load(); };
  const auto end = std::chrono::steady_clock::now() + kAwake;
  do {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (ready()) return !stop_.load();
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  std::unique_lock<std::mutex> lock(mutex_);
  own->asleep.store(true, std::memory_order_seq_cst);
  own->wake.wait(lock, ready);
  own->asleep.store(false, std::memory_order_relaxed);
  return !stop_.load();
}

// Does what is left in every share, in this one first.  Returns how much it did.
size_t ThreadPool::take_all(size_t own) {
  size_t done = take(&shares_[own], true);
  const size_t active = active_.load(std::memory_order_relaxed);
  for (size_t i = 1; i < active; ++i) done += take(&shares_[(own + i) % active], false);
  return done;
}

// A thread that comes late finds an empty share, or that of the next run, in which it may take part: a run ends when all
// that was taken is done, and only then are functions replaced.
size_t ThreadPool::take(Share* share, bool is_own) {
  size_t done = 0;
  uint64_t range = share->range.load(std::memory_order_relaxed);
  while (!is_empty(range)) {
    const uint64_t first = static_cast<uint32_t>(range);
    const uint64_t last = range >> 32;
    const uint64_t rest = is_own ? last << 32 | (first + 1) : (last - 1) << 32 | first;
    if (!share->range.compare_exchange_weak(range, rest, std::memory_order_acq_rel, std::memory_order_relaxed)) continue;
    share->function(share->data, is_own ? first : last - 1);
    ++done;
    range = share->range.load(std::memory_order_relaxed);
  }
  return done;
}

bool ThreadPool::is_empty(uint64_t range) { return static_cast<uint32_t>(range) >= range >> 32; }

}  // namespace onnxfuse
