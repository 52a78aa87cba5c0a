// The plans that a node has made last, shared by all threads that run it.
#ifndef ONNXFUSE_PLAN_CACHE_H_
#define ONNXFUSE_PLAN_CACHE_H_

#include <array>
#include <atomic>
#include <climits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "platform/error.h"
#include "platform/forks.h"

namespace onnxfuse {

// A plan, or none, that its cache keeps as long as this.
template <class Plan>
class PlanInUse {
 public:
  PlanInUse() = default;
  // One that no cache has.
  explicit PlanInUse(std::shared_ptr<const Plan> own) : plan_(own.get()), own_(std::move(own)) {}
  // One that a cache has, and has counted this user of.
  PlanInUse(const Plan* plan, std::atomic<int>* users) : plan_(plan), users_(users) {}
  PlanInUse(PlanInUse&& other) noexcept
      : plan_(std::exchange(other.plan_, nullptr)),
        users_(std::exchange(other.users_, nullptr)),
        own_(std::move(other.own_)) {}
  PlanInUse& operator=(PlanInUse&& other) noexcept {
    std::swap(plan_, other.plan_);
    std::swap(users_, other.users_);
    std::swap(own_, other.own_);
    return *this;
  }
  ~PlanInUse() {
    if (users_ != nullptr) users_->fetch_sub(1, std::memory_order_release);
  }

  explicit operator bool() const { return plan_ != nullptr; }
  const Plan& operator*() const { return *plan_; }
  const Plan* operator->() const { return plan_; }

 private:
  const Plan* plan_ = nullptr;
  std::atomic<int>* users_ = nullptr;
  std::shared_ptr<const Plan> own_;
};

// A Plan has a member `key`.  No lock is taken where a plan is found, which most runs do.
template <class Plan>
class PlanCache {
 public:
  using Key = decltype(Plan::key);

  PlanInUse<Plan> find(const Key& key) {
    return find_if([&key](const Plan& plan) { return plan.key == key; });
  }

  // A plan that `matches`.
  template <class Matches>
  PlanInUse<Plan> find_if(const Matches& matches) {
    const size_t last = last_.load(std::memory_order_relaxed);
    for (size_t i = 0; i < kPlans; ++i) {
      const size_t at = (last + i) % kPlans;
      Place& place = places_[at];
      // A user who is counted may read the plan, unless it is being replaced.
      const bool stays = place.users.fetch_add(1, std::memory_order_acquire) >= 0;
      if (stays && place.plan != nullptr && matches(*place.plan)) {
        if (i > 0) last_.store(at, std::memory_order_relaxed);
        return {place.plan.get(), &place.users};
      }
      place.users.fetch_sub(1, std::memory_order_release);
    }
    return {};
  }

  // The plan of this key; if there is none, one that `make` fills in.  It gives false, and says why, if it cannot: then
  // throws Error.
  template <class Make>
  PlanInUse<Plan> find_or_make(const Key& key, const Make& make) {
    if (auto plan = find(key)) return plan;
    auto plan = std::make_shared<Plan>();
    std::string error;
    if (!make(plan.get(), &error)) throw Error(error);
    return add(std::move(plan));
  }

  // In the place of the oldest that is not in use.  Two threads that add at once may add the same.
  PlanInUse<Plan> add(std::shared_ptr<const Plan> plan) {
    const std::lock_guard<std::mutex> lock(mutex_of(this));
    for (size_t i = 0; i < kPlans; ++i) {
      Place& place = places_[oldest_];
      oldest_ = (oldest_ + 1) % kPlans;
      int none = 0;
      if (!place.users.compare_exchange_strong(none, kReplaced, std::memory_order_acquire)) continue;
      place.plan.swap(plan);
      // The caller is a user.  Others may have counted themselves meanwhile, and will take that back.
      place.users.fetch_sub(kReplaced - 1, std::memory_order_release);
      return {place.plan.get(), &place.users};
    }
    return PlanInUse<Plan>(std::move(plan));
  }

 private:
  static constexpr size_t kPlans = 4;
  static constexpr int kReplaced = INT_MIN / 2;  // users of a plan that no one may read

  struct Place {
    std::atomic<int> users{0};
    std::shared_ptr<const Plan> plan;
  };

  std::array<Place, kPlans> places_;
  std::atomic<size_t> last_{0};  // where a plan was found
  size_t oldest_ = 0;  // of a thread that has the mutex
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_PLAN_CACHE_H_
