"""Running models: the native library, sessions, and models without ONNX Runtime."""
