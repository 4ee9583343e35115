// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/host_device.h"
#include "reduce/format.h"

// What a fixed sum does with one element, on the host and on devices.
namespace presum::reduce {

// With exponent byte 255, a sum counts infinities instead: kPlus for each positive one, kMinus for
// each negative one, both for a NaN. 32,767 leaves fill neither.
inline constexpr int kPlus = 1;
inline constexpr int kMinus = 1 << 15;

// F: leaves are integers below 2^F, so that the sum of all of them fits.
template <class Integer>
constexpr int fixed_bits(std::size_t total_leaves) {
  return static_cast<int>(8 * sizeof(Integer)) - 1 - leaf_bits(total_leaves);
}

// The unit of those integers is 2^fixed_unit; REQUIRES: exponent < 255.
constexpr int fixed_unit(std::uint8_t exponent, int bits) {
  return std::max<int>(exponent, 1) - 126 - bits;
}

// The exponent byte of fp32.
inline std::uint8_t exponent_of(const Element& e, Format format) {
  if (e.kind != Element::Kind::kFinite) return 255;
  if (e.mantissa == 0) return 0;
  const int leading = leading_bit(e.mantissa) + e.shift + format.unit();
  return static_cast<std::uint8_t>(std::max(leading + 127, 0));
}

// mantissa * 2^shift to nearest even, or, beyond 64 bits, the largest integer.
inline std::uint64_t shift_and_round(std::uint64_t mantissa, int shift) {
  if (mantissa == 0) return 0;
  if (shift > std::countl_zero(mantissa)) return ~std::uint64_t{0};
  if (shift >= 0) return mantissa << shift;
  if (shift < -62) return 0;
  const std::uint64_t whole = mantissa >> -shift;
  const std::uint64_t rest = mantissa - (whole << -shift);
  const std::uint64_t half = std::uint64_t{1} << (-shift - 1);
  return whole + (rest > half || (rest == half && (whole & 1) != 0) ? 1 : 0);
}

inline std::int64_t encode(const Element& e, Format format, std::uint8_t exponent, int bits) {
  if (exponent == 255) {
    if (e.kind == Element::Kind::kNan) return kPlus + kMinus;
    if (e.kind == Element::Kind::kInfinite) return e.negative ? kMinus : kPlus;
    return 0;
  }
  const std::uint64_t largest = (std::uint64_t{1} << bits) - 1;
  const int shift = e.shift + format.unit() - fixed_unit(exponent, bits);
  const auto size =
      static_cast<std::int64_t>(std::min(shift_and_round(e.mantissa, shift), largest));
  return e.negative ? -size : size;
}

inline Specials counted(std::int64_t counts) {
  return {.nan = false, .plus = counts % kMinus != 0, .minus = counts / kMinus != 0};
}

}  // namespace presum::reduce
