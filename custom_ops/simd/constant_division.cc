#include "simd/constant_division.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace onnxfuse {

std::optional<ReciprocalParts> reciprocal_of(float divisor) {
  constexpr int kMostBits = 20;
  constexpr float kMost = 0x1p32f;
  const float size = std::fabs(divisor);
  if (!(size >= 1 / kMost && size <= kMost)) return std::nullopt;
  int exponent = 0;
  auto odd = static_cast<uint32_t>(std::ldexp(std::frexp(size, &exponent), std::numeric_limits<float>::digits));
  while (odd % 2 == 0) odd /= 2;
  if (odd == 1 || odd >= uint32_t{1} << kMostBits) return std::nullopt;
  const double whole = 1.0 / static_cast<double>(divisor);
  // The nearest float may lie beyond it.  Then the parts would have two signs, and so would the products with a zero.
  auto high = static_cast<float>(whole);
  if (std::fabs(static_cast<double>(high)) > std::fabs(whole)) high = std::nextafterf(high, 0.0f);
  return ReciprocalParts{high, static_cast<float>(whole - static_cast<double>(high))};
}

template <class T> std::optional<T> power_reciprocal_of(T divisor) {
  int exponent = 0;
  const T part = std::frexp(std::fabs(divisor), &exponent);
  const T reciprocal = 1 / divisor;
  if (part != T(0.5) || !std::isnormal(divisor) || !std::isnormal(reciprocal)) return std::nullopt;
  return reciprocal;
}

template std::optional<float> power_reciprocal_of(float);
template std::optional<double> power_reciprocal_of(double);

}  // namespace onnxfuse
