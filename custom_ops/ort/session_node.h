// A node that ORT creates and runs.
#ifndef ONNXFUSE_SESSION_NODE_H_
#define ONNXFUSE_SESSION_NODE_H_

#include <atomic>
#include <string>

#include "ort/ort_abi.h"
#include "ort/session_host.h"
#include "runtime/node_context.h"

namespace onnxfuse {

std::string node_name(const OrtApi* api, const OrtKernelInfo* info);

// As long as `info` lives.  Functions throw OrtFailure.
class SessionNode final : public NodeDefinition {
 public:
  SessionNode(const OrtApi* api, const OrtKernelInfo* info) : api_(api), info_(info) {}

  std::string name() const override { return node_name(api_, info_); }
  size_t input_count() const override;
  size_t output_count() const override;
  AttributeSource attributes() const override;

  const OrtApi* api() const { return api_; }
  const OrtLogger* logger() const;  // null if ORT gives none

 private:
  const OrtApi* api_;
  const OrtKernelInfo* info_;
};

// A run of a node.  Functions throw Error or OrtFailure.
class SessionRun final : public NodeContext {
 public:
  // `newer` is null if ORT is older; `allocator`, of memory of the host, if there is none.
  SessionRun(const OrtApi* api, const OrtApi24* newer, OrtKernelContext* context, OrtAllocator* allocator)
      : api_(api), newer_(newer), context_(context), host_(api, context, allocator) {}

  void read_inputs(NodeInputs* inputs) const override;
  void* output(size_t o, const Shape& shape, int* type) override;
  const Host& host() const override { return host_; }

  const OrtApi* api() const { return api_; }
  const OrtKernelContext* context() const { return context_; }

 private:
  int read_input(size_t i, Shape* shape, const void** data) const;
  int read_type_and_shape(const OrtValue* value, size_t i, Shape* shape) const;

  const OrtApi* api_;
  const OrtApi24* newer_;
  OrtKernelContext* context_;
  SessionHost host_;
};

// What a node warns of once, in the session's log.
class SessionWarning {
 public:
  // `place` is with what the text begins.
  SessionWarning(const SessionNode& node, std::string place);

  void warn_once(const std::string& message);

 private:
  const OrtApi* api_;
  const OrtLogger* logger_;
  const std::string place_;
  std::atomic<bool> warned_{false};
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_SESSION_NODE_H_
