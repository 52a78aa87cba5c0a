// What the library asks of the operating system: system_posix.cc for Linux and macOS, system_windows.cc for Windows.
#ifndef ONNXFUSE_SYSTEM_H_
#define ONNXFUSE_SYSTEM_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace onnxfuse {

// A file that any thread reads, at any place.
class File {
 public:
  // Of a path in UTF-8 where the system has one encoding, as ONNX Runtime takes it.  Throws Error if it cannot be opened.
  explicit File(const char* path);
  ~File();
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  // In bytes; 0 of what is no regular file.
  uint64_t size() const;
  // Whether all `size` bytes from `at` on are in `memory` now.
  bool read(uint64_t at, size_t size, void* memory) const;

 private:
#ifdef _WIN32
  void* file_;
#else
  int file_;
#endif
};

// Memory aligned to a cache line, of a size that is a multiple of one; null if there is none.  Only release() takes it back.
void* allocate(size_t bytes);
void release(void* memory);

// The bytes of a data cache of level 1, 2 or 3; 0 if the system does not tell.
int64_t cache_bytes(int level);

// A library that is never closed; null, with the reason, if it cannot be opened.
void* open_library(const char* path, std::string* error);
// The address of what it exports under a name, or null.
void* find_export(void* library, const char* name);

// The name of the library of NVIDIA's driver.
#ifdef _WIN32
constexpr char kCudaDriver[] = "nvcuda.dll";
#else
constexpr char kCudaDriver[] = "libcuda.so.1";
#endif

// Has a process that forks call `before`, then `in_parent` and `in_child`.  There are no forks on Windows.
void at_fork(void (*before)(), void (*in_parent)(), void (*in_child)());

// Keeps this library in the process when all who loaded it have closed it: ONNX Runtime does so with the options of each
// session.  An ELF file says that of itself.
void stay_loaded();

}  // namespace onnxfuse

#endif  // ONNXFUSE_SYSTEM_H_
