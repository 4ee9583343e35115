// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/host_device.h"
#include "reduce/format.h"

// What a binned sum does with one element, on the host and on devices.
namespace presum::reduce {

inline constexpr int kBinBits = 40;

// The top of an element that met what is not finite. Then high counts positive infinities, low
// negative ones, and a NaN counts as both.
inline constexpr std::uint8_t kSpecialBin = 255;

// Bin b holds the bits from 2^bin_unit(b) to below 2^bin_unit(b + 1); bin 1 begins with the
// smallest fp32 number, and bin 7 has the largest.
constexpr int bin_unit(int bin) { return kBinBits * (bin - 1) - 149; }

// Of one element's sum.
struct BinnedState {
  std::uint8_t top;
  std::int64_t high, low;
};

inline BinnedState raised(const BinnedState& s, std::uint8_t to) {
  if (to <= s.top) return s;
  return {to, 0, to == s.top + 1 ? s.high : 0};
}

inline std::uint8_t bin_of(const Element& e, Format format) {
  if (e.kind != Element::Kind::kFinite) return kSpecialBin;
  if (e.mantissa == 0) return 0;
  const int leading = leading_bit(e.mantissa) + e.shift + format.unit();
  return static_cast<std::uint8_t>((leading - bin_unit(1)) / kBinBits + 1);
}

// The element's bits in a bin; it has none in higher ones.
inline std::int64_t digit_of(const Element& e, Format format, int bin) {
  const int shift = e.shift + format.unit() - bin_unit(bin);
  if (shift >= kBinBits || shift <= -64) return 0;
  const std::uint64_t bits = shift >= 0 ? e.mantissa << shift : e.mantissa >> -shift;
  const auto digit = static_cast<std::int64_t>(bits & ((std::uint64_t{1} << kBinBits) - 1));
  return e.negative ? -digit : digit;
}

inline BinnedState with(const BinnedState& before, const Element& e, Format format) {
  BinnedState s = raised(before, bin_of(e, format));
  if (s.top == kSpecialBin) {
    const bool nan = e.kind == Element::Kind::kNan;
    const bool infinite = e.kind == Element::Kind::kInfinite;
    s.high += nan || (infinite && !e.negative) ? 1 : 0;
    s.low += nan || (infinite && e.negative) ? 1 : 0;
  } else {
    s.high += digit_of(e, format, s.top);
    s.low += digit_of(e, format, s.top - 1);
  }
  return s;
}

// The sum of two, which have the same top.
inline BinnedState merged(const BinnedState& a, const BinnedState& b) {
  const std::uint8_t top = a.top < b.top ? b.top : a.top;
  const BinnedState x = raised(a, top), y = raised(b, top);
  return {top, x.high + y.high, x.low + y.low};
}

// REQUIRES: the top is kSpecialBin.
inline std::uint64_t special_bits(const BinnedState& s, Format format) {
  const Specials specials{.nan = false, .plus = s.high != 0, .minus = s.low != 0};
  return specials.any() ? specials.bits(format) : 0;
}

}  // namespace presum::reduce
