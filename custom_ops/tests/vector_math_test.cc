// Accuracy of the float functions of vector_math.h against the C library in double or long double, over the whole range
// of floats and over the values where formulas change; the double functions that are not plain calls of the C library;
// the conversions of half.h.  Prints the largest error of each function in ulp and the argument where it occurs.
// With the argument "quick", tries a part of the arguments; with "time", prints ns per element instead.

#include "simd/half.h"
#include "simd/vector_math.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace {

namespace math = onnxfuse::ONNXFUSE_ISA::math;

constexpr double kMaxUlp = 4.0;
int failures = 0;
int sparseness = 1;  // how many times fewer arguments are tried

using Array = void (*)(const float*, float*, size_t);
using Reference = double (*)(double);

struct Function {
  const char* name;
  Array array;
  Reference reference;
};

// out[i] = function(x[i]) by packs and vectors, the last one filled up with zeros.  `out` may be `x`.
template <typename Function>
void map_vectors(const float* x, float* out, size_t n, Function function) {
  constexpr size_t kLanes = math::kVectorBytes / sizeof(float);
  math::FloatVector v;
  size_t i = 0;
  if constexpr (math::kPacked > 1) {
    for (; i + math::kPacked * kLanes <= n; i += math::kPacked * kLanes) {
      const auto read = [&](int k) {
        math::FloatVector one;
        std::memcpy(&one, x + i + k * kLanes, sizeof one);
        return one;
      };
      math::write_pack(function(math::read_pack(read)), [&](int k, math::FloatVector one) { std::memcpy(out + i + k * kLanes, &one, sizeof one); });
    }
  }
  for (; i + kLanes <= n; i += kLanes) {
    std::memcpy(&v, x + i, sizeof v);
    v = function(v);
    std::memcpy(out + i, &v, sizeof v);
  }
  if (i == n) return;
  v = math::FloatVector{};
  std::memcpy(&v, x + i, (n - i) * sizeof(float));
  v = function(v);
  std::memcpy(out + i, &v, (n - i) * sizeof(float));
}

#define ARRAY(NAME)                                             \
  void NAME##_loop(const float* x, float* out, size_t n) {      \
    for (size_t i = 0; i < n; ++i) out[i] = math::NAME(x[i]);   \
  }
#define VECTORS(NAME)                                                                 \
  ARRAY(NAME)                                                                         \
  void NAME##_vectors(const float* x, float* out, size_t n) {                         \
    map_vectors(x, out, n, [](auto v) { return math::NAME(v); });               \
  }
VECTORS(exp)
VECTORS(expm1)
VECTORS(log)
VECTORS(tanh)
VECTORS(sigmoid)
VECTORS(silu)
VECTORS(erf)
VECTORS(softplus)
VECTORS(mish)
VECTORS(gelu)
VECTORS(gelu_tanh)
ARRAY(asin)
ARRAY(acos)
ARRAY(atan)
ARRAY(sinh)
ARRAY(cosh)
ARRAY(asinh)
ARRAY(acosh)
ARRAY(atanh)
#undef VECTORS
#undef ARRAY

void pow_loop(const float* x, const float* y, float* out, size_t n) {
  for (size_t i = 0; i < n; ++i) out[i] = math::pow(x[i], y[i]);
}

// The references are the defining formulas where those are accurate in double, else an equal one.
double sigmoid_reference(double x) { return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x)); }
// As math::sigmoid has it: no denormal numbers.
double normal_sigmoid_reference(double x) { return x < static_cast<double>(math::kSigmoidLeast) ? 0 : sigmoid_reference(x); }
double softplus_reference(double x) { return std::fmax(x, 0) + std::log1p(std::exp(-std::fabs(x))); }
double mish_reference(double x) { return x * std::tanh(softplus_reference(x)); }
double gelu_reference(double x) { return x * (0.5 * std::erfc(-x * 0.70710678118654752)); }
double silu_reference(double x) { return x * normal_sigmoid_reference(x); }
double gelu_tanh_argument(double x) { return x * (1.5957691216057308 + 0.07135481627260025 * x * x); }
double gelu_tanh_reference(double x) { return x * sigmoid_reference(gelu_tanh_argument(x)); }
#if defined(__AVX512F__)
// By vectors nothing is left of a gate where 1 + e^-x is no float: x / log(2) is then below -128 when rounded to 1/32.
double gated_reference(double x, double y) { return x * (y < -88.71201 ? 0 : sigmoid_reference(y)); }
double silu_vectors_reference(double x) { return gated_reference(x, x); }
double gelu_tanh_vectors_reference(double x) { return gated_reference(x, gelu_tanh_argument(x)); }
#else
constexpr Reference silu_vectors_reference = silu_reference;
constexpr Reference gelu_tanh_vectors_reference = gelu_tanh_reference;
#endif

#define STD(NAME) [](double x) -> double { return std::NAME(x); }
const Function kFunctions[] = {
    {"exp*", exp_vectors, STD(exp)},  // *: by vectors
    {"expm1*", expm1_vectors, STD(expm1)},
    {"log*", log_vectors, STD(log)},
    {"tanh*", tanh_vectors, STD(tanh)},
    {"sigmoid*", sigmoid_vectors, normal_sigmoid_reference},
    {"silu*", silu_vectors, silu_vectors_reference},
    {"erf*", erf_vectors, STD(erf)},
    {"softplus*", softplus_vectors, softplus_reference},
    {"mish*", mish_vectors, mish_reference},
    {"gelu*", gelu_vectors, gelu_reference},
    {"gelu_tanh*", gelu_tanh_vectors, gelu_tanh_vectors_reference},
    {"exp", exp_loop, STD(exp)},
    {"expm1", expm1_loop, STD(expm1)},
    {"log", log_loop, STD(log)},
    {"tanh", tanh_loop, STD(tanh)},
    {"sigmoid", sigmoid_loop, normal_sigmoid_reference},
    {"silu", silu_loop, silu_reference},
    {"erf", erf_loop, STD(erf)},
    {"softplus", softplus_loop, softplus_reference},
    {"mish", mish_loop, mish_reference},
    {"gelu", gelu_loop, gelu_reference},
    {"gelu_tanh", gelu_tanh_loop, gelu_tanh_reference},
    {"sin", math::sin_array, STD(sin)},
    {"cos", math::cos_array, STD(cos)},
    {"tan", math::tan_array, STD(tan)},
    {"asin", asin_loop, STD(asin)},
    {"acos", acos_loop, STD(acos)},
    {"atan", atan_loop, STD(atan)},
    {"sinh", sinh_loop, STD(sinh)},
    {"cosh", cosh_loop, STD(cosh)},
    {"asinh", asinh_loop, STD(asinh)},
    {"acosh", acosh_loop, STD(acosh)},
    {"atanh", atanh_loop, STD(atanh)},
};
#undef STD

float from_bits(uint32_t u) {
  float x;
  std::memcpy(&x, &u, sizeof x);
  return x;
}

uint32_t to_bits(float x) {
  uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  return u;
}

// |value - exact| in units of the last place of the float nearest to `exact`.
double ulp_error(float value, double exact) {
  const float nearest = static_cast<float>(exact);
  if (std::isnan(nearest) || std::isnan(value)) return std::isnan(nearest) && std::isnan(value) ? 0 : HUGE_VAL;
  if (nearest == 0 && value == 0) return std::signbit(nearest) == std::signbit(value) ? 0 : HUGE_VAL;
  if (value == nearest) return 0;
  // An infinity counts as the float that would follow the largest one.
  const double v = std::isinf(value) ? std::copysign(0x1p128, value) : value;
  const double e = std::isinf(exact) || std::fabs(exact) > 0x1p128 ? std::copysign(0x1p128, exact) : exact;
  const int exponent = std::max(std::ilogb(e == 0 ? 0x1p-149 : e), -126);
  return std::fabs(v - e) / std::ldexp(1.0, exponent - 23);
}

const std::vector<float>& arguments() {
  static const std::vector<float> values = [] {
    std::vector<float> v;
    for (uint64_t u = 0; u < (uint64_t{1} << 32); u += 1021u * sparseness) v.push_back(from_bits(static_cast<uint32_t>(u)));
    const auto dense = [&v](float low, float high, int count) {
      count /= sparseness;
      for (int i = 0; i <= count; ++i) v.push_back(static_cast<float>(low + (double(high) - low) * i / count));
    };
    dense(-1, 1, 1000000);
    dense(-20, 20, 2000000);
    dense(-110, 95, 2000000);
    dense(-1e5f, 1e5f, 1000000);
    dense(-7e7f, 7e7f, 1000000);
    for (int64_t k = 1; k < 43000000; k += k < 20000 ? 1 : 97 * sparseness) {  // where sin or cos is smallest
      v.push_back(static_cast<float>(static_cast<double>(k) * 1.5707963267948966));
    }
    for (float centre : {0.0f, 0.5f, 0.70710678f, 1.0f, 1.41421356f, 1.5707963f, 3.1415927f, 3.92f, 3.95f, 9.01f, 9.03f,
                         10.5f, 14.5f, 16.635532f, 17.32868f, 87.33655f, 88.72284f, 89.0f, 103.97208f, 104.0f, 110.0f,
                         0x1p26f, 0x1p-126f, INFINITY}) {
      for (int32_t step = -2000; step <= 2000; ++step) {
        const float x = from_bits((to_bits(centre) + static_cast<uint32_t>(step)) & 0x7fffffffu);
        v.push_back(x);
        v.push_back(-x);
      }
    }
    return v;
  }();
  return values;
}

void report(const std::string& name, double worst, const std::string& where) {
  const bool bad = !(worst <= kMaxUlp);
  failures += bad;
  std::printf("%-10s %8.3f ulp at %s%s\n", name.c_str(), worst, where.c_str(), bad ? "  FAIL" : "");
}

std::string text(float x) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%a (%.9g)", x, x);
  return buffer;
}

void check(const Function& f) {
  const std::vector<float>& x = arguments();
  std::vector<float> y = x;
  f.array(y.data(), y.data(), y.size());  // in place
  double worst = 0;
  float where = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double error = ulp_error(y[i], f.reference(x[i]));
    if (error > worst) {
      worst = error;
      where = x[i];
    }
  }
  report(f.name, worst, text(where));
  // Alone, in a vector, or in a pack of them: an element has the same bits.
  for (size_t i = 0; i < x.size(); i += 101) {
    float alone = x[i];
    f.array(&alone, &alone, 1);
    const bool same = to_bits(alone) == to_bits(y[i]) || (std::isnan(alone) && std::isnan(y[i]));
    if (f.name[std::strlen(f.name) - 1] != '*' || same) continue;
    ++failures;
    std::printf("%-10s %s is %s alone, and %s among others  FAIL\n", f.name, text(x[i]).c_str(), text(alone).c_str(),
                text(y[i]).c_str());
    break;
  }
}

void check_pow() {
  std::vector<float> x, y;
  std::vector<float> specials = {0.0f, 0x1p-149f, 0x1p-127f, 0x1p-24f, 0.5f, 0.99999994f, 1.0f, 1.0000001f,
                                 1.5f, 2.0f, 2.5f, 3.0f, 127.0f, 128.0f, 149.0f, 150.0f, 8388607.5f, 8388609.0f,
                                 16777215.0f, 16777216.0f, 3.4028235e38f, INFINITY, NAN};
  for (size_t i = 0, n = specials.size(); i < n; ++i) specials.push_back(-specials[i]);
  for (float a : specials) {
    for (float b : specials) {
      x.push_back(a);
      y.push_back(b);
    }
  }
  std::mt19937 random(1);
  std::uniform_real_distribution<float> result(-150, 129), near_one(-1e-4f, 1e-4f);
  for (int i = 0; i < 2000000 / sparseness; ++i) {
    const float a = from_bits(random() & 0x7fffffffu);
    x.push_back(i % 4 == 0 ? 1 + near_one(random) : a);
    y.push_back(static_cast<float>(result(random) / std::log2(static_cast<double>(x.back()))));
    x.push_back(from_bits(random()));
    y.push_back(i % 2 ? from_bits(random()) : static_cast<float>(static_cast<int>(random() % 41) - 20));
  }
  std::vector<float> out(x.size());
  pow_loop(x.data(), y.data(), out.data(), x.size());
  double worst = 0;
  size_t where = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double error = ulp_error(out[i], std::pow(static_cast<double>(x[i]), static_cast<double>(y[i])));
    if (error > worst) {
      worst = error;
      where = i;
    }
  }
  report("pow", worst, text(x[where]) + ", " + text(y[where]));
}

struct DoubleFunction {
  const char* name;
  double (*function)(double);
  long double (*reference)(long double);
};

long double softplus_reference(long double x) { return std::fmax(x, 0.0L) + std::log1p(std::exp(-std::fabs(x))); }
long double sigmoid_reference(long double x) {
  return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x));
}

// 2 sqrt(2/pi), and 0.044715 times that.
constexpr long double kGelu1 = 1.5957691216057307117597842397375L;
constexpr long double kGelu3 = 0.071354816272600253536368152380062L;

#define DOUBLE(NAME, REFERENCE) \
  {#NAME, [](double x) { return math::NAME(x); }, [](long double x) -> long double { return REFERENCE; }}
const DoubleFunction kDoubleFunctions[] = {
    DOUBLE(exp, std::exp(x)),
    DOUBLE(expm1, std::expm1(x)),
    DOUBLE(log, std::log(x)),
    DOUBLE(tanh, std::tanh(x)),
    DOUBLE(sigmoid, sigmoid_reference(x)),
    DOUBLE(softplus, softplus_reference(x)),
    DOUBLE(mish, x * std::tanh(softplus_reference(x))),
    DOUBLE(gelu, x * (0.5L * std::erfc(-x * 0.70710678118654752440084436210485L))),
    DOUBLE(gelu_tanh, x * sigmoid_reference(x * (kGelu1 + kGelu3 * x * x))),
};
#undef DOUBLE

void check_double(const DoubleFunction& f) {
  std::vector<double> x = {0.0, -0.0, HUGE_VAL, -HUGE_VAL, NAN, 1.0, -1.0, 0x1p-1074, 0x1p-1022, 709.78, 709.79,
                           -745.1, -745.2, 1e300};
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> wide(-700, 709), middle(-36, 36), narrow(-1, 1);
  for (int i = 0; i < 200000 / sparseness; ++i) {
    const uint64_t u = random();
    double any;
    std::memcpy(&any, &u, sizeof any);
    for (double v : {any, wide(random), middle(random), narrow(random)}) x.push_back(v);
  }
  double worst = 0, where = 0;
  for (double v : x) {
    const double y = f.function(v);
    const long double exact = f.reference(v);
    const double nearest = static_cast<double>(exact);
    if (y == nearest && std::signbit(y) == std::signbit(nearest)) continue;
    if (std::isnan(y) && std::isnan(nearest)) continue;
    const int exponent = std::max(exact == 0 ? -1022 : std::ilogb(exact), -1022);
    const double error = static_cast<double>(std::fabs(y - exact) / std::ldexp(1.0L, exponent - 52));
    if (!(error <= worst)) {
      worst = std::isnan(error) ? HUGE_VAL : error;
      where = v;
    }
  }
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%a (%.17g), double", where, where);
  report(f.name, worst, buffer);
}

// The 16-bit value nearest to x, found by the order of the format's own values, with no arithmetic of half.h.
uint16_t nearest_f16(float x) {
  if (std::isnan(x)) return 0x7e00;
  const double magnitude = std::fabs(static_cast<double>(x));
  const int exponent = std::max(magnitude == 0 ? -14 : std::ilogb(magnitude), -14);
  const double quantum = std::ldexp(1.0, exponent - 10);
  const double rounded = std::nearbyint(magnitude / quantum) * quantum;
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  if (!(rounded < 65536)) return sign | 0x7c00;
  if (rounded < 0x1p-14) return static_cast<uint16_t>(sign | static_cast<int>(rounded * 0x1p24));
  const int e = std::ilogb(rounded);
  return static_cast<uint16_t>(sign | ((e + 15) << 10) | static_cast<int>(std::ldexp(rounded, 10 - e) - 1024));
}

uint16_t nearest_bf16(float x) {
  if (std::isnan(x)) return 0x7fc0;
  if (std::isinf(x)) return static_cast<uint16_t>(to_bits(x) >> 16);
  const uint32_t below = to_bits(x) & 0xffff0000u;
  const uint32_t above = below + 0x10000u;
  const double down = std::fabs(static_cast<double>(x) - from_bits(below));
  const double spacing = std::ldexp(1.0, std::max(x == 0 ? -126 : std::ilogb(x), -126) - 7);
  const bool odd = (below >> 16) & 1;
  return static_cast<uint16_t>((2 * down > spacing || (2 * down == spacing && odd) ? above : below) >> 16);
}

template <bool kBf16>
bool same_half(uint16_t got, uint16_t expected) {
  const uint16_t infinity = kBf16 ? 0x7f80 : 0x7c00;
  const uint16_t quiet = kBf16 ? 0x40 : 0x200;
  const bool nan = (expected & 0x7fff) > infinity;
  return nan ? (got & 0x7fff) > infinity && (got & quiet) : got == expected;
}

void check_halves() {
  std::vector<float> x = arguments();
  std::vector<uint16_t> every(65536);
  for (size_t i = 0; i < every.size(); ++i) every[i] = static_cast<uint16_t>(i);
  size_t wrong = 0;

  // Every 16-bit value widens and comes back, and its neighbourhood and the midpoints between values are rounded.
  std::vector<float> wide_f16(every.size()), wide_bf16(every.size());
  math::f16_to_f32(every.data(), wide_f16.data(), every.size());
  math::bf16_to_f32(every.data(), wide_bf16.data(), every.size());
  for (size_t i = 0; i < every.size(); ++i) {
    const uint32_t magnitude = i & 0x7fff;
    const int exponent = static_cast<int>(magnitude >> 10);
    const double mantissa = magnitude & 0x3ff;
    const double value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    const bool nan = magnitude > 0x7c00, infinite = magnitude == 0x7c00;
    const double expected = infinite ? HUGE_VAL : value;
    wrong += nan ? !std::isnan(wide_f16[i]) : std::fabs(static_cast<double>(wide_f16[i])) != expected;
    wrong += std::signbit(wide_f16[i]) != (i >= 0x8000);
    wrong += math::f16_to_f32(every[i]) != wide_f16[i] && !nan;
    wrong += to_bits(wide_bf16[i]) != static_cast<uint32_t>(i) << 16;
    for (int32_t step = -2; step <= 2; ++step) {
      x.push_back(from_bits(to_bits(wide_f16[i]) + static_cast<uint32_t>(step)));
      x.push_back(from_bits(to_bits(wide_f16[i]) + 0x1000u + static_cast<uint32_t>(step)));
      x.push_back(from_bits(to_bits(wide_bf16[i]) + 0x8000u + static_cast<uint32_t>(step)));
    }
    if (magnitude < 0x400) x.push_back(wide_f16[i] + std::copysign(0x1p-25f, wide_f16[i]));
  }

  std::vector<uint16_t> f16(x.size()), bf16(x.size());
  math::f32_to_f16(x.data(), f16.data(), x.size());
  math::f32_to_bf16(x.data(), bf16.data(), x.size());
  std::vector<float> round_f16 = x, round_bf16 = x;
  math::round_to_f16(round_f16.data(), round_f16.data(), x.size());
  math::round_to_bf16(round_bf16.data(), round_bf16.data(), x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    wrong += !same_half<false>(f16[i], nearest_f16(x[i]));
    wrong += !same_half<true>(bf16[i], nearest_bf16(x[i]));
    wrong += !same_half<false>(math::f32_to_f16(x[i]), f16[i]);
    if (std::isnan(x[i])) {
      wrong += !std::isnan(round_f16[i]) || !std::isnan(round_bf16[i]);
    } else {
      wrong += to_bits(round_f16[i]) != to_bits(wide_f16[f16[i]]);
      wrong += to_bits(round_bf16[i]) != to_bits(wide_bf16[bf16[i]]);
    }
  }
  failures += wrong != 0;
  std::printf("16-bit conversions: %zu wrong\n", wrong);
}

void time_all() {
  constexpr size_t n = 1024;
  alignas(64) static float x[n], y[n], out[n];
  for (size_t i = 0; i < n; ++i) {
    x[i] = -1 + 2 * static_cast<float>(i + 0.5) / n;
    y[i] = 3 * x[i];
  }
  const auto measure = [&](const char* name, auto&& run) {
    double best = HUGE_VAL;
    for (int trial = 0; trial < 15; ++trial) {
      constexpr int kCalls = 1000;
      const auto start = std::chrono::steady_clock::now();
      for (int call = 0; call < kCalls; ++call) {
        run();
        asm volatile("" : : : "memory");
      }
      const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - start;
      best = std::min(best, taken.count() / (kCalls * n));
    }
    std::printf("%-10s %7.3f ns per element\n", name, best);
  };
  for (const Function& f : kFunctions) measure(f.name, [&] { f.array(x, out, n); });
  measure("pow", [&] { pow_loop(x, y, out, n); });
  static uint16_t half[n];
  measure("to f16", [&] { math::f32_to_f16(x, half, n); });
  measure("from f16", [&] { math::f16_to_f32(half, out, n); });
  measure("to bf16", [&] { math::f32_to_bf16(x, half, n); });
  measure("from bf16", [&] { math::bf16_to_f32(half, out, n); });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "time") == 0) {
    time_all();
    return 0;
  }
  if (argc > 1 && std::strcmp(argv[1], "quick") == 0) sparseness = 16;
  for (const Function& f : kFunctions) check(f);
  check_pow();
  for (const DoubleFunction& f : kDoubleFunctions) check_double(f);
  check_halves();
  if (failures != 0) std::printf("%d failures\n", failures);
  return failures != 0;
}
