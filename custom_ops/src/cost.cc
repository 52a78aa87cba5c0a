#include "cost.h"

#include <algorithm>
#include <thread>

#include "forks.h"
#include "integers.h"

namespace onnxfuse {

namespace {

constexpr int64_t kMostThreads = 16;

// A part that is one of several for a thread takes at least so long: to begin one takes a hundredth of that.
constexpr double kPartNanoseconds = 6e3;

int64_t processors() {
  static Once<int64_t> count;
  return count.get([] { return std::max<int64_t>(std::thread::hardware_concurrency(), 1); });
}

// Of integers: vectors of them are divided as floats, but for the longest.
double division_cost(DType type) { return compute_size(type) == 8 ? 2.0 : 0.4; }

}  // namespace

double cost_of(Op op, DType type) {
  const bool wide = type == DType::f64;
  const bool floating = wide || type == DType::f32;
  switch (op) {
    case Op::Exp: case Op::Log: case Op::Tanh: case Op::Sigmoid: case Op::Erf: case Op::Elu:
      return wide ? 1.5 : 0.3;
    case Op::Softplus: case Op::Mish: case Op::Gelu: case Op::GeluTanh: case Op::Sin: case Op::Cos:
      return wide ? 20.0 : 0.6;
    case Op::Tan: case Op::Asin: case Op::Acos: case Op::Atan: case Op::Sinh: case Op::Cosh: case Op::Asinh:
    case Op::Acosh: case Op::Atanh:
      return wide ? 20.0 : 1.3;
    case Op::Pow:
      return floating && !wide ? 4.0 : 20.0;
    case Op::Fmod: case Op::Mod:
      return floating ? 0.5 : division_cost(type);
    case Op::Div:
      return floating ? 0.02 * static_cast<double>(compute_size(type)) : division_cost(type);
    default:
      return 0.01 * static_cast<double>(compute_size(type));
  }
}

double chained_cost_of(Op op, DType type) {
  const double simple = 0.003 * static_cast<double>(compute_size(type));
  const double alone = cost_of(op, type);
  return alone > 0.1 ? alone : simple;
}

int64_t parts_of(double nanoseconds, int64_t most) {
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
