// Where the memory of a run comes from, and that it is given back.
#include "runtime/host.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "platform/error.h"

namespace {

using onnxfuse::Host;
using onnxfuse::RunMemory;

int g_live = 0;   // blocks of the host's
int g_given = 0;  // likewise, ever
bool g_exhausted = false;

// Memory that begins anywhere but on a cache line.
constexpr size_t kOff = 8;

const Host kHost{nullptr, nullptr,
                 [](void*, size_t bytes) -> void* {
                   if (g_exhausted) return nullptr;
                   ++g_given;
                   ++g_live;
                   return static_cast<char*>(std::aligned_alloc(64, (bytes + kOff + 63) / 64 * 64)) + kOff;
                 },
                 [](void*, void* memory) {
                   --g_live;
                   std::free(static_cast<char*>(memory) - kOff);
                 }};

void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("failed: %s\n", what);
  std::exit(1);
}

void test_much_is_of_the_host() {
  constexpr size_t bytes = size_t{1} << 20;
  {
    const RunMemory memory(kHost, bytes);
    expect(g_live == 1, "much memory is the host's");
    expect(reinterpret_cast<uintptr_t>(memory.data()) % 64 == 0, "it is aligned to a cache line");
    std::memset(memory.data(), 1, bytes);
  }
  expect(g_live == 0, "it is given back");
}

void test_little_is_not() {
  g_given = 0;
  const RunMemory memory(kHost, 1000);
  std::memset(memory.data(), 1, 1000);
  expect(g_given == 0, "for little memory the host is not asked");
  expect(reinterpret_cast<uintptr_t>(memory.data()) % 64 == 0, "it is aligned to a cache line too");
  expect(RunMemory(kHost, 0).data() == nullptr && RunMemory().data() == nullptr, "nothing for nothing");
}

void test_moving() {
  for (const size_t bytes : {size_t{1000}, size_t{1} << 20}) {
    RunMemory one(kHost, bytes);
    void* const memory = one.data();
    const RunMemory other(std::move(one));
    expect(other.data() == memory && one.data() == nullptr, "memory that is moved is that of one alone");
  }
  expect(g_live == 0, "it is given back once");
}

void test_none_left() {
  g_exhausted = true;
  for (const size_t bytes : {size_t{1} << 20, SIZE_MAX}) {
    try {
      const RunMemory memory(kHost, bytes);
      expect(false, "where there is no memory that is an error");
    } catch (const onnxfuse::Error&) {
    }
  }
  g_exhausted = false;
}

}  // namespace

int main() {
  test_much_is_of_the_host();
  test_little_is_not();
  test_moving();
  test_none_left();
  std::printf("passed\n");
  return 0;
}
