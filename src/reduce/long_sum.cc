// SPDX-License-Identifier: Apache-2.0
#include "reduce/long_sum.h"

#include <algorithm>
#include <bit>

namespace presum::reduce {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr int kDigitBits = 32;
constexpr std::int64_t kDigitMask = 0xFFFFFFFF;

}  // namespace

void LongSum::add(bool negative, std::uint64_t mantissa, int shift) {
  const std::size_t first = kFraction + static_cast<std::size_t>(shift / kDigitBits);
  Wide term = static_cast<Wide>(mantissa) << (shift % kDigitBits);
  for (std::size_t i = first; i < first + 3; ++i, term >>= kDigitBits) {
    const std::int64_t digit = static_cast<std::int64_t>(term) & kDigitMask;
    digits_[i] += negative ? -digit : digit;
  }
  used_ = std::max(used_, first + 3);
}

// Moves carries up; afterwards the digits are those of the sum's magnitude. True: it was negative.
bool LongSum::make_magnitude() {
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

// True: something is left.
bool LongSum::divide(std::uint32_t divisor) {
  std::uint64_t rest = 0;
  for (std::size_t i = used_; i-- > 0;) {
    const std::uint64_t part = (rest << kDigitBits) | static_cast<std::uint64_t>(digits_[i]);
    digits_[i] = static_cast<std::int64_t>(part / divisor);
    rest = part % divisor;
  }
  return rest != 0;
}

int LongSum::leading_bit() const {
  for (std::size_t i = used_; i-- > 0;) {
    const auto digit = static_cast<std::uint64_t>(digits_[i]);
    if (digit != 0) return static_cast<int>(i) * kDigitBits + reduce::leading_bit(digit);
  }
  return -1;
}

// The bits from a position on, at least 64 of them.
std::uint64_t LongSum::bits_from(int position) const {
  const std::size_t first = static_cast<std::size_t>(position) / kDigitBits;
  Wide bits = 0;
  for (std::size_t i = std::min(first + 3, kDigits); i-- > first;) {
    bits = (bits << kDigitBits) | static_cast<std::uint64_t>(digits_[i]);
  }
  return static_cast<std::uint64_t>(bits >> (position % kDigitBits));
}

bool LongSum::any_below(int position) const {
  const std::size_t last = std::min(static_cast<std::size_t>(position) / kDigitBits, kDigits);
  for (std::size_t i = 0; i < last; ++i) {
    if (digits_[i] != 0) return true;
  }
  const std::int64_t mask = (std::int64_t{1} << (position % kDigitBits)) - 1;
  return last < kDigits && (digits_[last] & mask) != 0;
}

std::uint64_t LongSum::round(std::uint32_t divisor, int unit, Format format) {
  const bool negative = make_magnitude();
  const bool rest = divide(divisor);
  const int leading = leading_bit();
  if (leading < 0) return 0;
  // Positions of bits: 0 is the lowest of the fraction.
  const int smallest = format.unit() - unit + static_cast<int>(kFraction) * kDigitBits;
  const int lowest = std::max(leading - format.mantissa_bits, smallest);
  std::uint64_t mantissa = bits_from(lowest);
  const bool half = (bits_from(lowest - 1) & 1) != 0;
  const bool below = rest || any_below(lowest - 1);
  if (half && (below || (mantissa & 1) != 0)) ++mantissa;
  // The mantissa's highest bit, if it is set, raises the exponent by one, and so does its carry.
  const auto exponent = static_cast<std::uint64_t>(lowest - smallest);
  const std::uint64_t bits = (exponent << format.mantissa_bits) + mantissa;
  return std::min(bits, format.infinity()) | (negative ? format.sign() : 0);
}

}  // namespace presum::reduce
