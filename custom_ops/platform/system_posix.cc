#ifndef _WIN32

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "platform/cache_lines.h"
#include "platform/error.h"
#include "platform/system.h"

namespace onnxfuse {

File::File(const char* path) : file_(open(path, O_RDONLY | O_CLOEXEC)) {
  if (file_ < 0) throw Error("the file cannot be opened");
}

File::~File() { close(file_); }

uint64_t File::size() const {
  struct stat status;
  return fstat(file_, &status) == 0 && S_ISREG(status.st_mode) ? static_cast<uint64_t>(status.st_size) : 0;
}

bool File::read(uint64_t at, size_t size, void* memory) const {
  return pread(file_, memory, size, static_cast<off_t>(at)) == static_cast<ssize_t>(size);
}

void* allocate(size_t bytes) { return std::aligned_alloc(kCacheLine, bytes); }

void release(void* memory) { std::free(memory); }

#ifdef __APPLE__
int64_t cache_bytes(int level) {
  // Of the fast cores; those of Intel's processors have no levels of performance.
  constexpr const char* kNames[2][2] = {{"hw.perflevel0.l1dcachesize", "hw.l1dcachesize"},
                                        {"hw.perflevel0.l2cachesize", "hw.l2cachesize"}};
  if (level > 2) return 0;
  for (const char* name : kNames[level - 1]) {
    int64_t bytes = 0;  // a number of 4 bytes fills its lower half
    size_t size = sizeof bytes;
    if (sysctlbyname(name, &bytes, &size, nullptr, 0) == 0 && bytes > 0) return bytes;
  }
  return 0;
}
#else
#ifdef __linux__
namespace {

// The number in a file of the kernel's about a cache of the first core, times 1024 where that is its unit; else 0.
int64_t cache_number(int index, const char* name) {
  char path[80];
  std::snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", index, name);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path, "re"), std::fclose);
  long long number = 0;
  char unit = 0;
  if (file == nullptr || std::fscanf(file.get(), "%lld%c", &number, &unit) < 1) return 0;
  return unit == 'K' ? number << 10 : number;
}

}  // namespace
#endif

int64_t cache_bytes(int level) {
#ifdef __linux__
  // What cores share, which glibc gets wrong: of an EPYC with 32 MB for each eight cores it says 320 MB.
  if (level == 3) {
    for (int index = 0; index < 8; ++index) {
      if (cache_number(index, "level") == level) return cache_number(index, "size");
    }
  }
#endif
  // glibc has names for caches, other C libraries have not.
#ifdef _SC_LEVEL1_DCACHE_SIZE
  constexpr int kNames[] = {_SC_LEVEL1_DCACHE_SIZE, _SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE};
  return sysconf(kNames[level - 1]);
#else
  static_cast<void>(level);
  return 0;
#endif
}
#endif

void* open_library(const char* path, std::string* error) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) *error = dlerror();
  return library;
}

void* find_export(void* library, const char* name) { return dlsym(library, name); }

void at_fork(void (*before)(), void (*in_parent)(), void (*in_child)()) { pthread_atfork(before, in_parent, in_child); }

void stay_loaded() {
#ifdef __APPLE__
  Dl_info info;
  static const void* const kept = dladdr(reinterpret_cast<const void*>(&stay_loaded), &info) == 0
                                      ? nullptr
                                      : dlopen(info.dli_fname, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  static_cast<void>(kept);
#endif
}

}  // namespace onnxfuse

#endif
