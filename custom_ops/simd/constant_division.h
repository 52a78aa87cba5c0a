// Divisions of float32 by a number that is known in advance, without a division.
#ifndef ONNXFUSE_CONSTANT_DIVISION_H_
#define ONNXFUSE_CONSTANT_DIVISION_H_

#include <cstdint>
#include <optional>

namespace onnxfuse {

// 1 / divisor as a sum of two floats of one sign, the second so small that the first has all its leading bits.
struct ReciprocalParts {
  float high;
  float low;
};

// Dividends nearer to zero than 2^-40, other than zeros, must be divided; these are its bits.
constexpr uint32_t kLeastDividend = uint32_t{127 - 40} << 23;

// What makes fma(x, high, x * low) the very float x / divisor, for every x that is not as above: zeros of both signs,
// infinities and NaN too.  None where that is not certain.
//
// Brisebarre, Muller and Raina, "Accelerating Correctly Rounded Floating-Point Division When the Divisor Is Known in
// Advance", IEEE Transactions on Computers 53 (8), 2004, section 4.  Where the divisor is an odd integer Y of few bits times
// a power of two, a simple argument is enough.  A quotient is X / Y in some unit, with an integer X; numbers halfway between
// two floats are odd multiples M of half an ulp, and M has one bit more than X, so X / Y is never one of them, but at least
// 1 / (2 Y) ulp from each.  `low` is within 2^-24 of its value and at most 2^-23 of `high`, the product with it is rounded by
// as much, and 1 / divisor was rounded to a double before: together at most (2^-46 + 2^-53) x / divisor, less than
// 2^-22 + 2^-29 ulp; and 2^-31 ulp where that product is denormal, even if such numbers count as zeros, since quotients are at
// least 2^-72.  So for Y below 2^20 there is no halfway number between the sum and the quotient, and the one rounding of the
// sum is that of the quotient.
std::optional<ReciprocalParts> reciprocal_of(float divisor);

// The reciprocal of a power of two: multiplying by it is dividing, for all floats.  None of other numbers, or if one of the two
// is not a normal number, which a thread may take for 0.
template <class T> std::optional<T> power_reciprocal_of(T divisor);

}  // namespace onnxfuse

#endif  // ONNXFUSE_CONSTANT_DIVISION_H_
