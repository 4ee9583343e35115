// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/host_device.h"
#include "reduce/format.h"
#include "reduce/long_sum.h"

// Exact sums of 128 bits and their rounding, without a loop over digits: device threads use them in
// place of LongSum where they suffice.
namespace presum::reduce {

// Rounds q * 2^unit, plus a little more if `left`, to nearest even. REQUIRES: q has more bits than
// the format's precision.
inline std::uint64_t round_bits(bool negative, std::uint64_t q, bool left, int unit, Format f) {
  // Positions of bits: 0 is the lowest bit of q.
  const int smallest = f.unit() - unit;
  const int lowest = std::max(leading_bit(q) - f.mantissa_bits, smallest);  // at least 1
  std::uint64_t mantissa = lowest < 64 ? q >> lowest : 0;
  const bool half = lowest <= 64 && (q >> (lowest - 1) & 1) != 0;
  const std::uint64_t below =
      lowest <= 64 ? (std::uint64_t{1} << (lowest - 1)) - 1 : ~std::uint64_t{0};
  if (half && (left || (q & below) != 0 || (mantissa & 1) != 0)) ++mantissa;
  const std::uint64_t bits =
      (static_cast<std::uint64_t>(lowest - smallest) << f.mantissa_bits) + mantissa;
  return std::min(bits, f.infinity()) | (negative ? f.sign() : 0);
}

// Returns sum / divisor * 2^unit, rounded once; +0 for a sum of zero. REQUIRES: the format has at
// most 24 bits of precision, the sum at most 127 bits.
inline std::uint64_t round_quotient(WideInt sum, std::uint32_t divisor, int unit, Format f) {
  if (sum == 0) return 0;
  const bool negative = sum < 0;
  const Wide size = negative ? -static_cast<Wide>(sum) : static_cast<Wide>(sum);
  const auto upper = static_cast<std::uint64_t>(size >> 64);
  const int leading =
      upper != 0 ? 64 + leading_bit(upper) : leading_bit(static_cast<std::uint64_t>(size));
  // The dividend has 63 bits, so the quotient has at least 32. The bits cut off before the division
  // and its remainder only break ties.
  const int cut = leading - 62;
  const std::uint64_t dividend =
      cut > 0 ? static_cast<std::uint64_t>(size >> cut) : static_cast<std::uint64_t>(size) << -cut;
  const bool lost = cut > 0 && (size & ((Wide{1} << cut) - 1)) != 0;
  const std::uint64_t quotient = dividend / divisor;
  return round_bits(negative, quotient, lost || quotient * divisor != dividend, unit + cut, f);
}

// The sum of numbers within a factor of 2^44 of the first one, in both directions, as an integer.
class WindowSum {
 public:
  // Returns false if the number does not fit; the sum is then unusable. Up to 32,767 numbers of a
  // format with at most 24 bits of precision.
  bool add(const Element& e) {
    if (e.mantissa == 0) return true;
    if (!begun_) unit_ = e.shift - kBelow;
    begun_ = true;
    const int place = e.shift - unit_;
    if (place < 0 || place > 2 * kBelow - 1) return false;
    const WideInt term = static_cast<WideInt>(e.mantissa) << place;
    sum_ += e.negative ? -term : term;
    return true;
  }

  // `unit`: the unit of the numbers at shift 0.
  std::uint64_t round(std::uint32_t divisor, int unit, Format f) const {
    return round_quotient(sum_, divisor, unit_ + unit, f);
  }

 private:
  static constexpr int kBelow = 44;  // 2 * 44 - 1, a mantissa, 15 bits for the leaves: 126 bits

  WideInt sum_ = 0;
  int unit_ = 0;
  bool begun_ = false;
};

}  // namespace presum::reduce
