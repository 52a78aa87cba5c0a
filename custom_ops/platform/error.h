// Errors that nodes report.
#ifndef ONNXFUSE_ERROR_H_
#define ONNXFUSE_ERROR_H_

#include <exception>
#include <string>
#include <utility>

namespace onnxfuse {

// Those of OrtErrorCode, by their numbers, that code which does not know ORT has to tell it.
enum class ErrorCode : int { None = 0, Fail = 1, InvalidGraph = 10 };

// What is wrong with a node or its tensors.
class Error : public std::exception {
 public:
  // With None the caller of the code that fails chooses the code.
  explicit Error(std::string message, ErrorCode code = ErrorCode::None) : message_(std::move(message)), code_(code) {}
  const char* what() const noexcept override { return message_.c_str(); }
  ErrorCode code() const { return code_; }

 private:
  std::string message_;
  ErrorCode code_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_ERROR_H_
