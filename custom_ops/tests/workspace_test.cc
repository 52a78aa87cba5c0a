// Which memory a Workspace gets, and how much there is in all.  Linked with --wrap for the functions that give memory.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "runtime/workspace.h"

extern "C" {
void* __real_aligned_alloc(size_t alignment, size_t bytes);
void __real_free(void* memory);
}

namespace {

using onnxfuse::Workspace;

std::atomic<int> g_given{0};  // blocks, ever
std::atomic<int> g_live{0};

void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("failed: %s\n", what);
  std::exit(1);
}

void test_best_fit() {
  void* small = nullptr;
  void* large = nullptr;
  {
    const Workspace one(1000);
    const Workspace other(5000);
    small = one.data();
    large = other.data();
    expect(reinterpret_cast<uintptr_t>(small) % 64 == 0, "memory is aligned to a cache line");
  }
  {
    const Workspace one(900);
    const Workspace other(4000);
    expect(one.data() == small && other.data() == large, "the smallest block that is large enough");
  }
  {
    const Workspace other(1100);
    const Workspace one(10);
    expect(one.data() == small && other.data() == large, "whatever was given back last");
  }
  expect(g_given == 2, "blocks are used again");
}

// After test_best_fit: there are two blocks, of some 1000 and 5000 bytes.
void test_what_is_too_small_is_given_up() {
  {
    const Workspace larger(9000);
    expect(g_given == 3 && g_live == 2, "a new block for the largest, which is given up");
    const Workspace one(1000);
    expect(g_given == 3, "the smaller one is kept");
  }
  for (int run = 0; run < 10; ++run) {
    const Workspace one(8000);
    const Workspace other(1000);
  }
  expect(g_given == 3 && g_live == 2, "shapes that have been seen need no new memory");
}

void test_moving_and_nothing() {
  Workspace one(100);
  void* const memory = one.data();
  const Workspace other(std::move(one));
  expect(other.data() == memory && one.data() == nullptr, "a workspace that is moved takes its memory along");
  expect(Workspace(0).data() == nullptr && Workspace().data() == nullptr, "nothing for nothing");
}

// Nobody gets what another has, and there are no more blocks than were in use at once.
void test_threads() {
  constexpr int kThreads = 4;
  const int before = g_live;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t] {
      for (size_t run = 0; run < 3000; ++run) {
        const size_t bytes = 64 + (run * 7919 + static_cast<size_t>(t) * 104729) % 20000;
        const Workspace own(bytes);
        std::memset(own.data(), t, bytes);
        for (size_t i = 0; i < bytes; ++i) expect(static_cast<char*>(own.data())[i] == t, "memory of its own");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect(g_live <= before + kThreads, "as many blocks as were in use at once");
}

// What one thread gives back comes to it again, whatever others do meanwhile; and to them when it has ended.
void test_a_thread_keeps_its_memory() {
  void* of_thread = nullptr;
  const int given = g_given;
  std::thread([&] {
    { of_thread = Workspace(50000).data(); }
    for (int run = 0; run < 10; ++run) {
      std::thread([&] { expect(Workspace(50000).data() != of_thread, "not what another thread keeps"); }).join();
      expect(Workspace(50000).data() == of_thread, "what the thread itself has used last");
    }
  }).join();
  expect(g_given <= given + 2, "blocks of threads that have ended are used again");
}

// What a thread still does when the memory that it kept has gone to the others.
struct Late {
  bool used = false;
  ~Late() {
    const Workspace one(1000), other(1000), more(1000);
    const bool apart = one.data() != other.data() && one.data() != more.data() && other.data() != more.data();
    expect(!used || apart, "memory of its own when the thread ends");
  }
};
thread_local Late late;

void test_the_end_of_a_thread() {
  std::thread([] {
    late.used = true;  // made before what the thread keeps, so destroyed after it
    const Workspace one(1000), other(1000);
  }).join();
  const Workspace one(1000), other(1000), more(1000);
  expect(one.data() != other.data() && one.data() != more.data() && other.data() != more.data(), "and afterwards");
}

}  // namespace

extern "C" {

void* __wrap_aligned_alloc(size_t alignment, size_t bytes) {
  ++g_given;
  ++g_live;
  return __real_aligned_alloc(alignment, bytes);
}

void __wrap_free(void* memory) {
  if (memory != nullptr) --g_live;
  __real_free(memory);
}

}

int main() {
  test_best_fit();
  test_what_is_too_small_is_given_up();
  test_moving_and_nothing();
  test_threads();
  test_a_thread_keeps_its_memory();
  test_the_end_of_a_thread();
  std::printf("passed\n");
  return 0;
}
