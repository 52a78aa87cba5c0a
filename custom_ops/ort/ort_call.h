// Calls of ONNX Runtime's C API, and errors on their way through it.
#ifndef ONNXFUSE_ORT_CALL_H_
#define ONNXFUSE_ORT_CALL_H_

#include <string>

#include "ort/ort_abi.h"
#include "platform/error.h"

namespace onnxfuse {

// A failed call of the ORT API; whoever catches it owns the status.
class OrtFailure {
 public:
  explicit OrtFailure(OrtStatus* status) : status_(status) {}
  OrtStatus* status() const { return status_; }

 private:
  OrtStatus* status_;
};

inline void check(OrtStatus* status) {
  if (status != nullptr) throw OrtFailure(status);
}

static_assert(static_cast<int>(ErrorCode::None) == ORT_OK && static_cast<int>(ErrorCode::Fail) == ORT_FAIL &&
              static_cast<int>(ErrorCode::InvalidGraph) == ORT_INVALID_GRAPH);

// A status that says what the exception that is handled says.
OrtStatus* status_of_exception(const OrtApi* api, OrtErrorCode code, const std::string& where) noexcept;

// Runs `body` and turns every exception into a status: none may cross the C ABI.
template <class Body>
OrtStatus* guarded(const OrtApi* api, OrtErrorCode code, const std::string& where, const Body& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (...) {
    return status_of_exception(api, code, where);
  }
}

// A string that the ORT API copies to the caller in two calls, the first for its size (which counts the final 0).
template <class Get>
std::string read_string(const Get& get) {
  size_t size = 0;
  check(get(nullptr, &size));
  std::string text(size, '\0');
  check(get(text.data(), &size));
  if (!text.empty() && text.back() == '\0') text.pop_back();
  return text;
}

}  // namespace onnxfuse

#endif  // ONNXFUSE_ORT_CALL_H_
