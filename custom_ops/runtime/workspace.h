// Memory that threads work in, kept from one use to the next: what the system gives anew costs more than the work.
#ifndef ONNXFUSE_WORKSPACE_H_
#define ONNXFUSE_WORKSPACE_H_

#include <cstddef>
#include <utility>

namespace onnxfuse {

// As long as it lives, memory of its own, aligned to a cache line; none for 0 bytes.
//
// It is the smallest of the blocks kept that is large enough, of those that the thread has used last if one of these is.  If
// none is, the largest of them is given up for a new one: so a thread keeps no more blocks than it used at once, and none is
// larger than the most that was asked for.
class Workspace {
 public:
  Workspace() = default;
  // Throws Error if there is no memory.
  explicit Workspace(size_t bytes);
  ~Workspace();
  Workspace(Workspace&& other) noexcept : block_(std::exchange(other.block_, {})) {}
  Workspace& operator=(Workspace&&) = delete;

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
