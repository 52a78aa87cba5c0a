// Plans that threads use while others make their cache forget them.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "plan/plan_cache.h"

namespace {

std::atomic<int> g_live{0};  // plans

struct Plan {
  explicit Plan(int number = 0) : key(number), copy(std::make_unique<int>(number)) { ++g_live; }
  ~Plan() {
    *copy = -1;
    --g_live;
  }
  int key;
  std::unique_ptr<int> copy;
};

using Cache = onnxfuse::PlanCache<Plan>;

void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("failed: %s\n", what);
  std::exit(1);
}

onnxfuse::PlanInUse<Plan> use(Cache* cache, int key) {
  return cache->find_or_make(key, [key](Plan* plan, std::string*) {
    plan->key = *plan->copy = key;
    return true;
  });
}

void test_the_oldest_is_forgotten() {
  {
    Cache cache;
    for (int key = 0; key < 4; ++key) use(&cache, key);
    expect(cache.find(0) && cache.find(3) && g_live == 4, "as many as there is room for");
    use(&cache, 4);
    expect(!cache.find(0) && cache.find(1) && cache.find(4) && g_live == 4, "the first made is the first forgotten");
  }
  expect(g_live == 0, "a cache keeps nothing when it is gone");
}

void test_what_is_in_use_stays() {
  Cache cache;
  {
    const auto first = use(&cache, 0);
    auto second = use(&cache, 1);
    const auto moved = std::move(second);
    for (int key = 2; key < 10; ++key) use(&cache, key);
    expect(*first->copy == 0 && *moved->copy == 1 && cache.find(0) && cache.find(1), "plans in use are not forgotten");
    std::vector<onnxfuse::PlanInUse<Plan>> all;
    for (int key = 10; key < 20; ++key) all.push_back(use(&cache, key));
    for (int i = 0; i < 10; ++i) expect(*all[i]->copy == 10 + i, "plans that the cache has no room for can be used too");
    expect(g_live == 12, "and no more are kept than are in use");
    expect(!cache.find(19) && cache.find(0), "it does not know them");
  }
  expect(g_live == 4, "what it has no room for is gone after use");
  expect(*use(&cache, 19)->copy == 19 && cache.find(19), "there is room again");
}

void test_what_cannot_be_made() {
  Cache cache;
  try {
    cache.find_or_make(1, [](Plan*, std::string* error) {
      *error = "no";
      return false;
    });
    expect(false, "an error is thrown");
  } catch (const onnxfuse::Error& error) {
    expect(std::string(error.what()) == "no" && !cache.find(1), "which says why");
  }
}

// More keys than there is room for, so that plans are found, made and forgotten all the time.
void test_threads() {
  Cache cache;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&cache, t] {
      for (int run = 0; run < 20000; ++run) {
        const int key = (run * (t + 1) + run / 100) % 6;
        const auto plan = use(&cache, key);
        expect(plan->key == key && *plan->copy == key, "a thread gets the plan of its key, for as long as it uses it");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  expect(g_live <= 4, "no more are kept than there is room for");
}

}  // namespace

int main() {
  test_the_oldest_is_forgotten();
  test_what_is_in_use_stays();
  test_what_cannot_be_made();
  test_threads();
}
