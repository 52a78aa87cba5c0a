#include "plan/cost.h"

#include <algorithm>
#include <thread>

#include "figures/plan.h"
#include "platform/forks.h"
#include "platform/integers.h"

namespace onnxfuse {

namespace {

constexpr int64_t kMostThreads = 16;

// Parts of a node's work at most, unless there are more processors.
constexpr int64_t kParts = 64;

// Nanoseconds by Cost and DType.
constexpr double kCosts[][kDTypeCount] = {
#define ONNXFUSE_COST(name, ...) {__VA_ARGS__},
#include "program/opcodes.inc"
#undef ONNXFUSE_COST
};

}  // namespace

double cost_of(Op op, DType type) { return kCosts[static_cast<int>(info(op).cost)][static_cast<int>(type)]; }

double chained_cost_of(Op op, DType type) {
  const double simple = kChainedByteNanoseconds * static_cast<double>(compute_size(type));
  const double alone = cost_of(op, type);
  return alone > kFunctionNanoseconds ? alone : simple;
}

int64_t processors() {
  static Once<int64_t> count;
  return count.get([] { return std::max<int64_t>(std::thread::hardware_concurrency(), 1); });
}

int64_t most_parts() { return std::max(kParts, processors()); }

int64_t parts_of(double nanoseconds, int64_t most) {
  most = std::min(most, most_parts());
  const auto parts_for = [&](double each) {
    return static_cast<int64_t>(std::min(nanoseconds / each, static_cast<double>(most)));
  };
  const int64_t one_each = std::min(parts_for(kChunkNanoseconds), processors());
  const int64_t several = parts_for(kPartNanoseconds) / processors() * processors();
  return std::max({one_each, several, int64_t{1}});
}

int64_t parts_of_thread(int64_t parts) { return std::max<int64_t>(parts / processors(), 1); }

double imbalance(int64_t units) {
  const int64_t most = std::min(processors(), kMostThreads);
  double sum = 0.0;
  double count = 0.0;
  for (int64_t threads = 1; threads <= most; threads *= 2, ++count) {
    sum += static_cast<double>(divide_up(units, threads) * threads) / static_cast<double>(units);
  }
  return sum / count;
}

}  // namespace onnxfuse
