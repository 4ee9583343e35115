// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/host_device.h"
#include "reduce/format.h"

namespace presum::reduce {

// An exact sum of any terms: an integer of many digits. The scalar reference uses it, and so do
// kernels for what their own sums cannot hold. Up to 2^20 terms ±mantissa * 2^shift, with shift up
// to 2045, which covers binary64.
template <std::size_t kSumDigits>
class LongSumOf {
 public:
  void add(bool negative, std::uint64_t mantissa, int shift);

  // Returns the sum / divisor * 2^unit, rounded once to nearest even, as bits of the format; +0 for
  // a sum of zero. Consumes the sum.
  std::uint64_t round(std::uint32_t divisor, int unit, Format format);

 private:
  bool make_magnitude();
  bool divide(std::uint32_t divisor);
  int leading_bit() const;
  std::uint64_t bits_from(int position) const;
  bool any_below(int position) const;

  static constexpr int kDigitBits = 32;
  static constexpr std::int64_t kDigitMask = 0xFFFFFFFF;

  // Digits for the fraction of the quotient, below those of the sum. With 96 bits, a quotient of
  // two integers has more bits than any format, so the remainder of the division only breaks ties.
  static constexpr std::size_t kFraction = 3;
  static constexpr std::size_t kDigits = kFraction + kSumDigits;

  std::array<std::int64_t, kDigits> digits_{};  // 32 bits each, plus carries not yet propagated
  std::size_t used_ = kFraction;
};

template <std::size_t kSumDigits>
void LongSumOf<kSumDigits>::add(bool negative, std::uint64_t mantissa, int shift) {
  const std::size_t first = kFraction + static_cast<std::size_t>(shift / kDigitBits);
  Wide term = static_cast<Wide>(mantissa) << (shift % kDigitBits);
  for (std::size_t i = first; i < first + 3; ++i, term >>= kDigitBits) {
    const std::int64_t digit = static_cast<std::int64_t>(term) & kDigitMask;
    digits_[i] += negative ? -digit : digit;
  }
  used_ = std::max(used_, first + 3);
}

// Propagates the carries; afterwards the digits are those of the sum's magnitude. Returns whether
// the sum was negative.
template <std::size_t kSumDigits>
bool LongSumOf<kSumDigits>::make_magnitude() {
  used_ = std::min(used_ + 1, kDigits);
  for (bool negative = false;; negative = true) {
    std::int64_t carry = 0;
    for (std::size_t i = kFraction; i < used_; ++i) {
      const std::int64_t digit = digits_[i] + carry;
      carry = digit >> kDigitBits;
      digits_[i] = digit & kDigitMask;
    }
    if (carry == 0) return negative;
    digits_[used_ - 1] += carry * (kDigitMask + 1);
    for (std::size_t i = kFraction; i < used_; ++i) digits_[i] = -digits_[i];
  }
}

// Returns whether there is a remainder.
template <std::size_t kSumDigits>
bool LongSumOf<kSumDigits>::divide(std::uint32_t divisor) {
  std::uint64_t rest = 0;
  for (std::size_t i = used_; i-- > 0;) {
    const std::uint64_t part = (rest << kDigitBits) | static_cast<std::uint64_t>(digits_[i]);
    digits_[i] = static_cast<std::int64_t>(part / divisor);
    rest = part % divisor;
  }
  return rest != 0;
}

template <std::size_t kSumDigits>
int LongSumOf<kSumDigits>::leading_bit() const {
  for (std::size_t i = used_; i-- > 0;) {
    const auto digit = static_cast<std::uint64_t>(digits_[i]);
    if (digit != 0) return static_cast<int>(i) * kDigitBits + reduce::leading_bit(digit);
  }
  return -1;
}

// Returns the bits from a position on, at least 64 of them.
template <std::size_t kSumDigits>
std::uint64_t LongSumOf<kSumDigits>::bits_from(int position) const {
  const std::size_t first = static_cast<std::size_t>(position) / kDigitBits;
  Wide bits = 0;
  for (std::size_t i = std::min(first + 3, kDigits); i-- > first;) {
    bits = (bits << kDigitBits) | static_cast<std::uint64_t>(digits_[i]);
  }
  return static_cast<std::uint64_t>(bits >> (position % kDigitBits));
}

template <std::size_t kSumDigits>
bool LongSumOf<kSumDigits>::any_below(int position) const {
  const std::size_t last = std::min(static_cast<std::size_t>(position) / kDigitBits, kDigits);
  for (std::size_t i = 0; i < last; ++i) {
    if (digits_[i] != 0) return true;
  }
  const std::int64_t mask = (std::int64_t{1} << (position % kDigitBits)) - 1;
  return last < kDigits && (digits_[last] & mask) != 0;
}

template <std::size_t kSumDigits>
std::uint64_t LongSumOf<kSumDigits>::round(std::uint32_t divisor, int unit, Format format) {
  const bool negative = make_magnitude();
  const bool rest = divide(divisor);
  const int leading = leading_bit();
  if (leading < 0) return 0;
  // Positions of bits: 0 is the lowest bit of the fraction.
  const int smallest = format.unit() - unit + static_cast<int>(kFraction) * kDigitBits;
  const int lowest = std::max(leading - format.mantissa_bits, smallest);
  std::uint64_t mantissa = bits_from(lowest);
  const bool half = (bits_from(lowest - 1) & 1) != 0;
  const bool below = rest || any_below(lowest - 1);
  if (half && (below || (mantissa & 1) != 0)) ++mantissa;
  // The mantissa's highest bit, if it is set, increments the exponent; so does a carry.
  const auto exponent = static_cast<std::uint64_t>(lowest - smallest);
  const std::uint64_t bits = (exponent << format.mantissa_bits) + mantissa;
  return std::min(bits, format.infinity()) | (negative ? format.sign() : 0);
}

// Enough for every format.
using LongSum = LongSumOf<69>;

}  // namespace presum::reduce
