// A child of a fork runs, whatever other threads of its parent were doing.
#include "platform/forks.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "executable/block_pool.h"
#include "executable/thread_pool.h"
#include "plan/plan_cache.h"
#include "runtime/workspace.h"

namespace {

using onnxfuse::Block;
using onnxfuse::BlockPool;
using onnxfuse::PlanCache;
using onnxfuse::ThreadPool;
using onnxfuse::Workspace;

constexpr int kForks = 200;
constexpr unsigned kHangs = 60;  // seconds after which a child is taken for one that never ends

// Forks, and lets the child run `body`.
template <class Body>
void fork_and_run(const char* what, const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(kHangs);
    body();
    _exit(0);
  }
  int status = 0;
  if (waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  std::printf("failed: %s in a child of a fork (status %d)\n", what, status);
  std::fflush(stdout);
  _exit(1);  // other threads run on
}

// Forks again and again while another thread does nothing but `body`, as do the children.
template <class Body>
void test_while_another_thread(const char* what, const Body& body) {
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop.load()) body();
  });
  for (int i = 0; i < kForks; ++i) fork_and_run(what, body);
  stop.store(true);
  other.join();
}

// More than a thread keeps for itself.
void use_workspaces() {
  std::vector<Workspace> some;
  for (size_t i = 1; i <= 8; ++i) some.emplace_back(1000 * i);
}

struct SomePlan {
  int key = 0;
};

void test_once() {
  static onnxfuse::Once<int> number;
  std::atomic<bool> begun{false};
  const auto make = [&begun] {
    begun.store(true);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return 7;
  };
  std::thread other([&] { number.get(make); });
  while (!begun.load()) std::this_thread::yield();
  fork_and_run("what is made once", [&] {
    if (number.get(make) != 7) _exit(1);
  });
  other.join();
}

}  // namespace

int main() {
  test_once();
  test_while_another_thread("memory of threads", use_workspaces);
  BlockPool blocks;
  test_while_another_thread("memory of tensors", [&] {
    Block one = blocks.take(100);
    Block other = blocks.take(1000);
    blocks.give_back(std::move(one));
    blocks.give_back(std::move(other));
  });
  PlanCache<SomePlan> plans;
  const auto plan = std::make_shared<const SomePlan>();
  test_while_another_thread("plans", [&] { plans.add(plan); });
  test_while_another_thread("pools of threads", [] { ThreadPool::of(1); });
}
