// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "reduce/format.h"

namespace presum::reduce {

// A sum that is exact whatever is added: an integer of many digits. The scalar reference is made of
// it, and the kernels leave to it what two doubles cannot hold. Up to 2^20 terms ±mantissa *
// 2^shift, with shift up to 2045: all of binary64.
class LongSum {
 public:
  void add(bool negative, std::uint64_t mantissa, int shift);

  // The sum / divisor * 2^unit, rounded once to nearest even, as bits of the format. +0 for a sum
  // of zero. Uses the sum up.
  std::uint64_t round(std::uint32_t divisor, int unit, Format format);

 private:
  bool make_magnitude();
  bool divide(std::uint32_t divisor);
  int leading_bit() const;
  std::uint64_t bits_from(int position) const;
  bool any_below(int position) const;

  // Digits for the quotient's fraction stand below those of the sum: 96 bits, so that a quotient of
  // two integers has more bits than any format, and what is left of the division only breaks ties.
  static constexpr std::size_t kFraction = 3;
  static constexpr std::size_t kDigits = kFraction + 69;

  std::array<std::int64_t, kDigits> digits_{};  // 32 bits each, and carries that are still to go up
  std::size_t used_ = kFraction;
};

}  // namespace presum::reduce
