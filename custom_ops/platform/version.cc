// The library's version, which onnxfuse/run/library.py compares with that of the Python package.
extern "C" __attribute__((visibility("default"))) const char* onnxfuse_version() { return ONNXFUSE_VERSION; }
