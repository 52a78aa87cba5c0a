// The plans that a node has made last, shared by all threads that run it.
#ifndef ONNXFUSE_PLAN_CACHE_H_
#define ONNXFUSE_PLAN_CACHE_H_

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ort_call.h"

namespace onnxfuse {

// A Plan has a member `key`, equal to no other plan's.
template <class Plan>
class PlanCache {
 public:
  using Key = decltype(Plan::key);

  std::shared_ptr<const Plan> find(const Key& key) const {
    return find_if([&key](const Key& other) { return other == key; });
  }

  // The plan whose key `matches`.
  template <class Matches>
  std::shared_ptr<const Plan> find_if(const Matches& matches) const {
    const auto plans = std::atomic_load(&plans_);
    if (plans == nullptr) return nullptr;
    for (const auto& plan : *plans) {
      if (matches(plan->key)) return plan;
    }
    return nullptr;
  }

  // The plan of this key; if there is none, one that `make` fills in.  It gives false, and says why, if it cannot: then
  // throws Error.
  template <class Make>
  std::shared_ptr<const Plan> find_or_make(const Key& key, const Make& make) {
    if (auto plan = find(key)) return plan;
    auto plan = std::make_shared<Plan>();
    std::string error;
    if (!make(plan.get(), &error)) throw Error(error);
    add(plan);
    return plan;
  }

  // Two threads that add at once may lose one plan: it is made again when it is needed.
  void add(const std::shared_ptr<const Plan>& plan) {
    auto plans = std::make_shared<std::vector<std::shared_ptr<const Plan>>>();
    plans->push_back(plan);
    if (const auto old = std::atomic_load(&plans_)) {
      plans->insert(plans->end(), old->begin(), old->begin() + static_cast<long>(std::min(old->size(), kPlans - 1)));
    }
    std::atomic_store(&plans_, std::shared_ptr<const std::vector<std::shared_ptr<const Plan>>>(std::move(plans)));
  }

 private:
  static constexpr size_t kPlans = 4;
  std::shared_ptr<const std::vector<std::shared_ptr<const Plan>>> plans_;
};

}  // namespace onnxfuse

#endif  // ONNXFUSE_PLAN_CACHE_H_
