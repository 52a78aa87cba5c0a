// What the library shows to those who load it.
#ifndef ONNXFUSE_EXPORTS_H_
#define ONNXFUSE_EXPORTS_H_

#ifdef _WIN32
#define ONNXFUSE_EXPORT __declspec(dllexport)
#else
#define ONNXFUSE_EXPORT __attribute__((visibility("default")))
#endif

#endif  // ONNXFUSE_EXPORTS_H_
