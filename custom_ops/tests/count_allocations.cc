// Counts the calls of operator new that the code of one shared object makes; to be loaded before all others.
#include <link.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace {

std::atomic<uintptr_t> watched_begin{0};
std::atomic<uintptr_t> watched_end{0};
std::atomic<long> calls{0};

void count(const void* caller) {
  const auto address = reinterpret_cast<uintptr_t>(caller);
  if (address >= watched_begin && address < watched_end) ++calls;
}

void* allocated(void* memory) {
  if (memory == nullptr) std::abort();
  return memory;
}

// Watches the code of the object whose path ends in `name`.
int watch(dl_phdr_info* info, size_t, void* name) {
  const size_t length = std::strlen(static_cast<const char*>(name));
  const size_t all = std::strlen(info->dlpi_name);
  if (all < length || std::strcmp(info->dlpi_name + all - length, static_cast<const char*>(name)) != 0) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_LOAD || (header.p_flags & PF_X) == 0) continue;
    watched_begin = info->dlpi_addr + header.p_vaddr;
    watched_end = watched_begin + header.p_memsz;
  }
  return 1;
}

}  // namespace

// False if no such object is loaded.
extern "C" bool watch_object(char* name) { return dl_iterate_phdr(watch, name) != 0; }

extern "C" long allocations() { return calls; }

void* operator new(size_t bytes) {
  count(__builtin_return_address(0));
  return allocated(std::malloc(bytes == 0 ? 1 : bytes));
}

void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  count(__builtin_return_address(0));
  return std::malloc(bytes == 0 ? 1 : bytes);
}

void* operator new(size_t bytes, std::align_val_t alignment) {
  count(__builtin_return_address(0));
  const auto unit = static_cast<size_t>(alignment);
  return allocated(std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit));
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
