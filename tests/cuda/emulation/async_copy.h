// Asynchronous copies to shared memory (cp.async): made when they are waited for and no sooner, so that a kernel which
// does not wait computes with what was there before.

#ifndef ONNXFUSE_EMULATION_ASYNC_COPY_H_
#define ONNXFUSE_EMULATION_ASYNC_COPY_H_

namespace emulation {

struct AsyncCopy {
  void* to;
  const void* from;
  size_t bytes;
  bool inside;
};

// Of one thread: the groups that were committed, and after them the one that is open.
using CopyGroups = std::vector<std::vector<AsyncCopy>>;

inline thread_local std::map<unsigned, CopyGroups> copy_groups;

inline CopyGroups& own_copies() {
  CopyGroups& groups = copy_groups[threadIdx.x];
  if (groups.empty()) groups.emplace_back();
  return groups;
}

}  // namespace emulation

inline void onnxfuse_emulation_cp_async(void* to, const void* from, size_t bytes, bool inside) {
  emulation::shared_uses.trace(to, bytes, true);  // it may be written from now on
  emulation::own_copies().back().push_back({to, from, bytes, inside});
}

inline void onnxfuse_emulation_cp_async_commit() { emulation::own_copies().emplace_back(); }

inline void onnxfuse_emulation_cp_async_wait(size_t latest) {
  emulation::CopyGroups& groups = emulation::own_copies();
  while (groups.size() - 1 > latest) {
    for (const emulation::AsyncCopy& copy : groups.front()) {
      emulation::shared_uses.trace(copy.to, copy.bytes, true);
      if (copy.inside) memcpy(copy.to, copy.from, copy.bytes);
      else memset(copy.to, 0, copy.bytes);
    }
    groups.erase(groups.begin());
  }
}

#endif  // ONNXFUSE_EMULATION_ASYNC_COPY_H_
