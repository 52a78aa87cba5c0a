/* Finds the library of onnxfuse and registers it with the session options of ONNX Runtime, from C99 or C++.

   One file, to be included behind onnxruntime_c_api.h of ONNX Runtime 1.20 or later:

     OrtStatus* status = onnxfuse_register(api, options, "fused.onnx");

   `onnxfuse export-library DIR` writes it, the library, and its licence, which is this file's too, into DIR. */
#ifndef ONNXFUSE_H_
#define ONNXFUSE_H_

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef _WIN32
#include <windows.h>
#define ONNXFUSE_LIBRARY_NAME L"onnxfuse_ops.dll"
#else
#include <unistd.h>
#ifdef __APPLE__
#include <mach-o/dyld.h>
#define ONNXFUSE_LIBRARY_NAME "libonnxfuse_ops.dylib"
#else
#define ONNXFUSE_LIBRARY_NAME "libonnxfuse_ops.so"
#endif
#endif

#define ONNXFUSE_LONGEST_PATH 4096

#ifdef _WIN32
static int onnxfuse_exists_(const wchar_t* path) { return GetFileAttributesW(path) != INVALID_FILE_ATTRIBUTES; }

static size_t onnxfuse_program_(wchar_t* path, size_t capacity) {
  const DWORD length = GetModuleFileNameW(NULL, path, (DWORD)capacity);
  return length < capacity ? length : 0;
}

static int onnxfuse_named_(wchar_t* path, size_t capacity) {
  const DWORD length = GetEnvironmentVariableW(L"ONNXFUSE_LIBRARY", path, (DWORD)capacity);
  return length > 0 && length < capacity;
}
#else
static int onnxfuse_exists_(const char* path) { return access(path, R_OK) == 0; }

static size_t onnxfuse_program_(char* path, size_t capacity) {
#ifdef __APPLE__
  uint32_t size = (uint32_t)capacity;
  return _NSGetExecutablePath(path, &size) == 0 ? strlen(path) : 0;
#else
  const ssize_t length = readlink("/proc/self/exe", path, capacity);
  return length > 0 && (size_t)length < capacity ? (size_t)length : 0;
#endif
}

static int onnxfuse_named_(char* path, size_t capacity) {
  const char* named = getenv("ONNXFUSE_LIBRARY");
  if (named == NULL || named[0] == 0 || strlen(named) >= capacity) return 0;
  memcpy(path, named, strlen(named) + 1);
  return 1;
}
#endif

/* Writes where the library is to `path`, with a 0 behind, and returns 1; or 0 if it is not found.  That is the file that the
   environment variable ONNXFUSE_LIBRARY names if it is set, and else the one in the folder of the running program, or in
   the folder lib beside that.  `capacity` counts characters. */
static inline int onnxfuse_find_library(ORTCHAR_T* path, size_t capacity) {
  static const ORTCHAR_T kName[] = ONNXFUSE_LIBRARY_NAME;
#ifdef _WIN32
  static const ORTCHAR_T kFolders[2][8] = {L"", L"..\\lib\\"};
#else
  static const ORTCHAR_T kFolders[2][8] = {"", "../lib/"};
#endif
  size_t folder, i;
  if (onnxfuse_named_(path, capacity)) return onnxfuse_exists_(path);
  folder = onnxfuse_program_(path, capacity);
  while (folder > 0 && path[folder - 1] != '/' && path[folder - 1] != '\\') --folder;
  if (folder == 0) return 0;
  for (i = 0; i < 2; ++i) {
    size_t end = folder, k;
    if (folder + 8 + sizeof(kName) / sizeof(kName[0]) > capacity) return 0;
    for (k = 0; kFolders[i][k] != 0; ++k) path[end++] = kFolders[i][k];
    memcpy(path + end, kName, sizeof(kName));
    if (onnxfuse_exists_(path)) return 1;
  }
  return 0;
}

/* Registers the operators of onnxfuse with the options of sessions that are created later.

   `model` is the path of the model whose sessions they are for, in UTF-8: its operators are registered, and no others; or NULL:
   some of each kind, for sessions of any models.  Returns NULL, or a status that the caller releases. */
static inline OrtStatus* onnxfuse_register(const OrtApi* api, OrtSessionOptions* options, const char* model) {
  ORTCHAR_T path[ONNXFUSE_LONGEST_PATH];
  OrtStatus* status;
  if (!onnxfuse_find_library(path, ONNXFUSE_LONGEST_PATH))
    return api->CreateStatus(ORT_NO_SUCHFILE,
                             "the library of onnxfuse is neither beside the program nor where ONNXFUSE_LIBRARY says");
  if (model != NULL) {
    status = api->AddSessionConfigEntry(options, "onnxfuse.model", model);
    if (status != NULL) return status;
  }
  return api->RegisterCustomOpsLibrary_V2(options, path);
}

#endif
