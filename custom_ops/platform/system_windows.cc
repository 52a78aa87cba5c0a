#ifdef _WIN32

#define NOMINMAX
#include <windows.h>

#include <malloc.h>

#include <algorithm>
#include <vector>

#include "platform/cache_lines.h"
#include "platform/error.h"
#include "platform/system.h"

namespace onnxfuse {
namespace {

// Of text in UTF-8; empty if it is none.
std::wstring wide(const char* text) {
  const int length = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text, -1, nullptr, 0);
  std::wstring found(static_cast<size_t>(std::max(length, 1)), L'\0');
  MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text, -1, found.data(), length);
  found.pop_back();  // the 0
  return found;
}

}  // namespace

// Others may write, rename and remove it, as they may elsewhere.
File::File(const char* path)
    : file_(CreateFileW(wide(path).c_str(), GENERIC_READ, FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, nullptr,
                        OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, nullptr)) {
  if (file_ == INVALID_HANDLE_VALUE) throw Error("the file cannot be opened");
}

File::~File() { CloseHandle(file_); }

uint64_t File::size() const {
  LARGE_INTEGER size;
  const bool known = GetFileType(file_) == FILE_TYPE_DISK && GetFileSizeEx(file_, &size) != 0;
  return known ? static_cast<uint64_t>(size.QuadPart) : 0;
}

bool File::read(uint64_t at, size_t size, void* memory) const {
  constexpr size_t kMost = size_t{1} << 30;  // a DWORD counts the bytes of one call
  for (size_t done = 0; done < size;) {
    const uint64_t from = at + done;
    OVERLAPPED place = {};
    place.Offset = static_cast<DWORD>(from);
    place.OffsetHigh = static_cast<DWORD>(from >> 32);
    DWORD count = 0;
    const auto wanted = static_cast<DWORD>(std::min(size - done, kMost));
    if (ReadFile(file_, static_cast<char*>(memory) + done, wanted, &count, &place) == 0 || count == 0) return false;
    done += count;
  }
  return true;
}

void* allocate(size_t bytes) { return _aligned_malloc(bytes, kCacheLine); }

void release(void* memory) { _aligned_free(memory); }

int64_t cache_bytes(int level) {
  DWORD bytes = 0;
  GetLogicalProcessorInformation(nullptr, &bytes);
  std::vector<SYSTEM_LOGICAL_PROCESSOR_INFORMATION> entries(bytes / sizeof(SYSTEM_LOGICAL_PROCESSOR_INFORMATION));
  if (entries.empty() || GetLogicalProcessorInformation(entries.data(), &bytes) == 0) return 0;
  for (const auto& entry : entries) {
    const CACHE_DESCRIPTOR& cache = entry.Cache;
    if (entry.Relationship != RelationCache || cache.Level != level || cache.Type == CacheInstruction) continue;
    return cache.Size;
  }
  return 0;
}

void* open_library(const char* path, std::string* error) {
  const HMODULE library = LoadLibraryW(wide(path).c_str());
  if (library == nullptr) *error = std::string(path) + ": error " + std::to_string(GetLastError()) + " of Windows";
  return reinterpret_cast<void*>(library);
}

void* find_export(void* library, const char* name) {
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(library), name));
}

void at_fork(void (*)(), void (*)(), void (*)()) {}

void stay_loaded() {
  HMODULE library;
  GetModuleHandleExW(GET_MODULE_HANDLE_EX_FLAG_PIN | GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS,
                     reinterpret_cast<const wchar_t*>(&stay_loaded), &library);
}

}  // namespace onnxfuse

#endif
