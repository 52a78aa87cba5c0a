// What is whole in a child of a fork, of which only the thread that forked goes on.
#ifndef ONNXFUSE_FORKS_H_
#define ONNXFUSE_FORKS_H_

#include <atomic>
#include <mutex>

namespace onnxfuse {

// How many forks there are between this process and the first that had the library.
unsigned forks();

// The mutex of an object, which it shares with others: there are a few.  Who forks has all of them, so that a child finds none
// locked, for ever, by a thread that it has not, and what they protect as it was between two uses.  Who has one takes no other.
std::mutex& mutex_of(const void* object);

// What is made when it is first asked for, and never destroyed: sessions may outlive static objects.  A static variable of a
// function that a child of a fork found half made would let it wait for ever.
template <class T>
class Once {
 public:
  template <class Make>
  T& get(const Make& make) {
    T* value = value_.load(std::memory_order_acquire);
    if (value != nullptr) return *value;
    const std::lock_guard<std::mutex> lock(mutex_of(this));
    value = value_.load(std::memory_order_relaxed);
    if (value == nullptr) {
      value = new T(make());
      value_.store(value, std::memory_order_release);
    }
    return *value;
  }

 private:
  std::atomic<T*> value_{nullptr};
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_FORKS_H_
