// Memory that threads work in, kept from one use to the next: what the system gives anew costs more than the work.
#ifndef ONNXFUSE_WORKSPACE_H_
#define ONNXFUSE_WORKSPACE_H_

#include <cstddef>

namespace onnxfuse {

// As long as it lives, memory of its own, aligned to a cache line.  There is as much in all as threads have needed at
// once.
class Workspace {
 public:
  // Throws Error if there is no memory.
  explicit Workspace(size_t bytes);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  void* data() const { return block_.memory; }

  struct Block {
    void* memory = nullptr;
    size_t bytes = 0;
  };

 private:
  Block block_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_WORKSPACE_H_
