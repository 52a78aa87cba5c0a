// Every part of a run is done once, whoever else runs, sleeps, or is gone.
#include "executable/thread_pool.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

namespace {

using onnxfuse::ThreadPool;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("failed: %s\n", what);
  std::exit(1);
}

struct Parts {
  explicit Parts(size_t count) : done(count) {}
  std::vector<std::atomic<int>> done;
  int plain = 0;  // written by whoever has part 0, read when all are done

  static void run(void* data, size_t i) {
    auto& parts = *static_cast<Parts*>(data);
    if (i == 0) ++parts.plain;
    parts.done[i].fetch_add(1, std::memory_order_relaxed);
  }
};

void run_once(ThreadPool* pool, size_t count) {
  Parts parts(count);
  pool->run(Parts::run, count, &parts);
  expect(parts.plain == (count > 0 ? 1 : 0), "what a part has written is there when the run ends");
  for (const auto& done : parts.done) expect(done.load() == 1, "each part is done once");
}

void test_runs_one_after_the_other() {
  for (const size_t threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    for (size_t run = 0; run < 3000; ++run) run_once(&pool, run % 17);
  }
}

void test_threads_that_sleep() {
  ThreadPool pool(3);
  for (int run = 0; run < 20; ++run) {
    run_once(&pool, 7);
    std::this_thread::sleep_for(std::chrono::milliseconds(run % 2 == 0 ? 1 : 5));
  }
}

// Threads that get no share sleep on, and wake for a run that has one for them.
void test_fewer_parts_than_threads() {
  ThreadPool pool(6);
  for (size_t run = 0; run < 200; ++run) {
    run_once(&pool, 2);
    if (run % 50 == 49) {
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      run_once(&pool, 6);
    }
  }
}

#if defined(__x86_64__)
void test_threads_keep_denormals() {
  constexpr unsigned flush = 0x8040;  // results and operands
  const unsigned before = __builtin_ia32_stmxcsr();
  __builtin_ia32_ldmxcsr(before | flush);
  ThreadPool pool(3);
  __builtin_ia32_ldmxcsr(before);
  std::atomic<unsigned> flags{0};
  for (int run = 0; run < 200; ++run) {
    pool.run(
        [](void* data, size_t) {
          static_cast<std::atomic<unsigned>*>(data)->fetch_or(__builtin_ia32_stmxcsr());
          std::this_thread::sleep_for(std::chrono::microseconds(20));
        },
        6, &flags);
  }
  expect((flags.load() & flush) == 0, "no thread flushes denormals");
}
#else
void test_threads_keep_denormals() {}
#endif

void test_callers_at_once() {
  ThreadPool pool(3);
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&pool] {
      for (size_t run = 0; run < 2000; ++run) run_once(&pool, 1 + run % 9);
    });
  }
  for (std::thread& caller : callers) caller.join();
}

void test_run_within_a_run() {
  ThreadPool pool(2);
  struct Nested {
    ThreadPool* pool;
    std::atomic<int> done{0};
  } nested{&pool};
  pool.run(
      [](void* data, size_t) {
        auto& outer = *static_cast<Nested*>(data);
        outer.pool->run([](void* inner, size_t) { static_cast<Nested*>(inner)->done.fetch_add(1); }, 3, data);
      },
      4, &nested);
  expect(nested.done.load() == 12, "a part may run parts of its own");
}

void test_pools_are_shared() {
  const auto one = ThreadPool::of(2);
  const std::weak_ptr<ThreadPool> other = ThreadPool::of(3);
  expect(one == ThreadPool::of(2), "who asks for as many threads has the same pool");
  expect(other.expired(), "a pool that nobody has is gone");
}

void test_fork() {
  auto pool = ThreadPool::of(3);
  run_once(pool.get(), 5);
  const pid_t child = fork();
  if (child == 0) {
    run_once(pool.get(), 5);
    expect(pool != ThreadPool::of(3), "a child has pools of its own");
    run_once(ThreadPool::of(3).get(), 5);
    pool.reset();
    _exit(0);
  }
  int status = 1;
  expect(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child of a fork runs");
  run_once(pool.get(), 5);
}

}  // namespace

int main(int count, char** arguments) {
  test_runs_one_after_the_other();
  test_threads_that_sleep();
  test_fewer_parts_than_threads();
  test_threads_keep_denormals();
  test_callers_at_once();
  test_run_within_a_run();
  test_pools_are_shared();
  if (count < 2 || arguments[1][0] != 't') test_fork();  // ThreadSanitizer starts no threads after a fork
  return 0;
}
