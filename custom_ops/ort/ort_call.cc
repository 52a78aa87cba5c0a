#include "ort/ort_call.h"

#include <exception>

namespace onnxfuse {

OrtStatus* status_of_exception(const OrtApi* api, OrtErrorCode code, const std::string& where) noexcept {
  try {
    throw;
  } catch (const OrtFailure& failure) {
    return failure.status();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::None) code = static_cast<OrtErrorCode>(error.code());
    return api->CreateStatus(code, (where + error.what()).c_str());
  } catch (const std::exception& error) {  // of memory: nothing is wrong with what was given
    return api->CreateStatus(ORT_FAIL, (where + error.what()).c_str());
  } catch (...) {
    return api->CreateStatus(ORT_FAIL, "onnxfuse: unknown error");
  }
}

}  // namespace onnxfuse
