// The threads of a block as fibers, which run in turns and change where they wait: at barriers of the block or of a warp.
//
// A barrier of the block is passed when all threads that have not returned wait there; one of a warp when all lanes of
// its mask do.  If no thread can run, the threads wait for each other at different barriers, which is a Violation.

#ifndef ONNXFUSE_EMULATION_FIBERS_H_
#define ONNXFUSE_EMULATION_FIBERS_H_

namespace emulation {

constexpr unsigned warp_size = 32;
constexpr size_t stack_bytes = 1 << 17;

class BlockOfFibers {
 public:
  explicit BlockOfFibers(unsigned threads) : fibers_(threads) {
    if (stacks.size() < threads) stacks.resize(threads);
    for (unsigned i = 0; i < threads; ++i) {
      if (stacks[i] == nullptr) stacks[i].reset(new char[stack_bytes]);
    }
  }

  // Runs `body` once on every thread; throws the first Violation of one.
  template <class Body> void run(const Body& body) {
    current = this;
    body_ = [](const void* object) { (*static_cast<const Body*>(object))(); };
    object_ = &body;
    for (unsigned i = 0; i < fibers_.size(); ++i) prepare(i);
    while (step()) {
    }
    current = nullptr;
    if (!failure_.message.empty()) throw failure_;
  }

  void wait_for_block() { wait(State::at_block, 0); }

  void wait_for_warp(unsigned mask) {
    if ((mask >> (threadIdx.x % warp_size) & 1) == 0) throw Violation{"a thread is not in the mask of its warp function"};
    wait(State::at_warp, mask);
  }

  // How many barriers the block has passed, and how many of a warp's own that warp.
  unsigned block_phase() const { return block_phase_; }
  unsigned warp_phase(unsigned warp) const { return warp_phases_[warp]; }

  // The lanes' values of the current warp function.
  uint64_t& slot(unsigned lane) { return slots_[threadIdx.x / warp_size * warp_size + lane]; }

  static inline thread_local BlockOfFibers* current = nullptr;
  static inline thread_local std::vector<std::unique_ptr<char[]>> stacks;  // for all blocks, one after the other

 private:
  enum class State { ready, at_block, at_warp, done };

  struct Fiber {
    ucontext_t context;  // to begin with
    jmp_buf place;       // to go on at
    bool has_begun = false;
    State state = State::ready;
    unsigned mask = 0;
  };

  void prepare(unsigned index) {
    Fiber& fiber = fibers_[index];
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = stacks[index].get();
    fiber.context.uc_stack.ss_size = stack_bytes;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, &BlockOfFibers::enter, 0);
    fiber.state = State::ready;
  }

  static void enter() {
    BlockOfFibers& block = *current;
    const unsigned index = threadIdx.x;
    try {
      block.body_(block.object_);
    } catch (const Violation& violation) {
      block.failure_ = violation;
    }
    block.fibers_[index].state = State::done;
    _longjmp(block.scheduler_, 1);
  }

  // Runs a thread until it waits or ends.  Jumps, unlike swapcontext, ask nothing of the operating system.
  __attribute__((noinline)) void resume(Fiber& fiber) {
    if (_setjmp(scheduler_) != 0) return;
    if (fiber.has_begun) _longjmp(fiber.place, 1);
    fiber.has_begun = true;
    setcontext(&fiber.context);
  }

  __attribute__((noinline)) void wait(State state, unsigned mask) {
    Fiber& fiber = fibers_[threadIdx.x];
    fiber.state = state;
    fiber.mask = mask;
    if (_setjmp(fiber.place) == 0) _longjmp(scheduler_, 1);
  }

  // Runs every thread that can, each until it waits; false when the block has ended.
  bool step() {
    bool ran = false;
    for (unsigned i = 0; i < fibers_.size(); ++i) {
      if (fibers_[i].state != State::ready) continue;
      threadIdx.x = i;
      resume(fibers_[i]);
      if (!failure_.message.empty()) return false;
      ran = true;
    }
    const bool ended = std::all_of(fibers_.begin(), fibers_.end(), [](const Fiber& f) { return f.state == State::done; });
    if (ended) return false;
    if (!release() && !ran) {
      failure_.message = "threads wait for each other at different barriers";
      return false;
    }
    return true;
  }

  // Wakes those whose barrier is complete.
  bool release() {
    bool woken = false;
    for (unsigned first = 0; first < fibers_.size(); first += warp_size) woken |= release_warp(first);
    const bool all = std::all_of(fibers_.begin(), fibers_.end(),
                                 [](const Fiber& f) { return f.state == State::at_block || f.state == State::done; });
    if (all) {
      ++block_phase_;
      for (Fiber& fiber : fibers_) {
        if (fiber.state == State::at_block) fiber.state = State::ready;
      }
    }
    return woken || all;
  }

  bool release_warp(unsigned first) {
    const unsigned end = std::min<unsigned>(first + warp_size, fibers_.size());
    for (unsigned i = first; i < end; ++i) {
      const unsigned mask = fibers_[i].mask;
      if (fibers_[i].state != State::at_warp) continue;
      unsigned arrived = 0;
      for (unsigned j = first; j < end; ++j) {
        if (fibers_[j].state == State::at_warp && fibers_[j].mask == mask) arrived |= 1u << (j - first);
      }
      if (arrived != mask) continue;
      ++warp_phases_[first / warp_size];
      for (unsigned j = first; j < end; ++j) {
        if (mask >> (j - first) & 1) fibers_[j].state = State::ready;
      }
      return true;
    }
    return false;
  }

  std::vector<Fiber> fibers_;
  unsigned block_phase_ = 0;
  std::vector<unsigned> warp_phases_ = std::vector<unsigned>(fibers_.size() / warp_size + 1);
  std::vector<uint64_t> slots_ = std::vector<uint64_t>(fibers_.size() + warp_size);
  jmp_buf scheduler_;
  void (*body_)(const void*) = nullptr;
  const void* object_ = nullptr;
  Violation failure_;
};

}  // namespace emulation

inline void __syncthreads() { emulation::BlockOfFibers::current->wait_for_block(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { emulation::BlockOfFibers::current->wait_for_warp(mask); }

// Every lane of the mask gives `value` and gets that of lane `source`.
template <class T> T onnxfuse_emulation_exchange(unsigned mask, T value, unsigned source) {
  static_assert(sizeof(T) <= 8, "");
  auto& block = *emulation::BlockOfFibers::current;
  memcpy(&block.slot(threadIdx.x % emulation::warp_size), &value, sizeof value);
  __syncwarp(mask);
  if ((mask >> source & 1) == 0) throw emulation::Violation{"a shuffle reads a lane that is not in its mask"};
  T result;
  memcpy(&result, &block.slot(source), sizeof result);
  __syncwarp(mask);  // before a slot is used again
  return result;
}

// `lane` within the thread's segment of `width` lanes, or the thread's own where that is outside of it.
template <class T> T onnxfuse_emulation_shuffle(unsigned mask, T value, int lane, int width) {
  const int own = static_cast<int>(threadIdx.x % emulation::warp_size);
  const int segment = own / width * width;
  return onnxfuse_emulation_exchange(mask, value, lane >= 0 && lane < width ? segment + lane : own);
}

template <class T> T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  return onnxfuse_emulation_shuffle(mask, value, lane & (width - 1), width);
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  return onnxfuse_emulation_shuffle(mask, value, static_cast<int>(threadIdx.x % width) ^ bits, width);
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return onnxfuse_emulation_shuffle(mask, value, static_cast<int>(threadIdx.x % width + delta), width);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return onnxfuse_emulation_shuffle(mask, value, static_cast<int>(threadIdx.x % width) - static_cast<int>(delta), width);
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  unsigned result = 0;
  auto& block = *emulation::BlockOfFibers::current;
  block.slot(threadIdx.x % emulation::warp_size) = predicate != 0;
  __syncwarp(mask);
  for (unsigned lane = 0; lane < emulation::warp_size; ++lane) {
    if (mask >> lane & 1) result |= static_cast<unsigned>(block.slot(lane)) << lane;
  }
  __syncwarp(mask);
  return result;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }

#endif  // ONNXFUSE_EMULATION_FIBERS_H_
