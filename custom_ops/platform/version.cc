// The library's version, which onnxfuse/run/library.py compares with that of the Python package.
#include "platform/exports.h"

extern "C" ONNXFUSE_EXPORT const char* onnxfuse_version() { return ONNXFUSE_VERSION; }
