#include "runtime/host.h"

#include <cstdint>
#include <cstring>
#include <string>

#include "platform/cache_lines.h"
#include "platform/error.h"
#include "platform/integers.h"

namespace onnxfuse {
namespace {

constexpr size_t kLittle = size_t{16} << 10;

}  // namespace

RunMemory::RunMemory(const Host& host, size_t bytes) : little_(bytes <= kLittle ? bytes : 0) {
  data_ = little_.data();
  if (bytes <= kLittle) return;
  host_ = &host;
  allocated_ = bytes > SIZE_MAX - kCacheLine ? nullptr : host.allocate(host.context, bytes + kCacheLine);
  if (allocated_ == nullptr) {
    throw Error("out of memory for " + std::to_string(bytes) + " bytes that a run needs", ErrorCode::Fail);
  }
  data_ = reinterpret_cast<void*>(round_up(reinterpret_cast<uintptr_t>(allocated_), kCacheLine));
}

RunMemory::~RunMemory() {
  if (allocated_ != nullptr) host_->release(host_->context, allocated_);
}

void OverlappingOutputs::move(const Host& host, size_t bytes, void** output) {
  outputs_.push_back({*output, bytes, RunMemory(host, bytes)});
  *output = outputs_.back().memory.data();
}

void OverlappingOutputs::copy() const {
  for (const Output& output : outputs_) std::memcpy(output.wanted, output.memory.data(), output.bytes);
}

}  // namespace onnxfuse
