// SPDX-License-Identifier: Apache-2.0
//
// Rounds exact sums to elements, once, as vectors. Include it like base/vectors-inl.h.
//
// Rounding to odd: a number that is not a double becomes the neighboring double whose last bit is
// 1. Such a double rounds to fewer bits (at least two fewer) like the number itself, because it is
// on the same side of each of their ties.
#if defined(PRESUM_REDUCE_ROUNDING_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef PRESUM_REDUCE_ROUNDING_INL_H
#undef PRESUM_REDUCE_ROUNDING_INL_H
#else
#define PRESUM_REDUCE_ROUNDING_INL_H
#endif

#include <bit>

#include "base/vectors-inl.h"
#include "reduce/format.h"

HWY_BEFORE_NAMESPACE();
namespace presum::reduce::HWY_NAMESPACE {

using namespace base::HWY_NAMESPACE;

using LongInts = hn::RebindToSigned<LongWords>;
using Ints = hn::RebindToSigned<Words>;

// kLanes sums.
struct Sums {
  Reals low, high;
};

HWY_INLINE hn::Vec<LongWords> long_words(Reals x) { return hn::BitCast(LongWords(), x); }

// a + b exactly: the rounded sum and its error. If b is not finite, the error is NaN.
struct Pair {
  Reals sum, rest;
};
HWY_INLINE Pair two_sum(Reals a, Reals b) {
  const auto sum = hn::Add(a, b);
  const auto b_part = hn::Sub(sum, a);
  const auto a_part = hn::Sub(sum, b_part);
  return {sum, hn::Add(hn::Sub(a, a_part), hn::Sub(b, b_part))};
}

// Rounds value + rest to odd. REQUIRES: value is that sum rounded to nearest, or not finite. Only
// the sign of `rest` matters.
HWY_INLINE Reals to_odd(Reals value, Reals rest) {
  const LongInts di;
  const auto bits = hn::BitCast(di, value);
  const auto inexact = hn::Gt(hn::Abs(rest), hn::Zero(Doubles()));  // false for NaN
  const auto even = hn::Eq(hn::And(bits, hn::Set(di, 1)), hn::Zero(di));
  const auto away = hn::BroadcastSignBit(hn::BitCast(di, hn::Xor(value, rest)));  // -1 or 0
  const auto odd = hn::Add(bits, hn::Or(away, hn::Set(di, 1)));
  const auto changed = hn::And(inexact, hn::RebindMask(Doubles(), even));
  return hn::IfThenElse(changed, hn::BitCast(Doubles(), odd), value);
}

// REQUIRES: the divisor is at most kKernelDivisorMax. Then dividing a sum that was rounded to odd,
// to at least 44 bits, gives the same result as dividing the sum itself: a tie of the result has at
// most 25 bits, its product with the divisor at most 43, and both sums are on the same side of that
// product.
class Division {
 public:
  explicit HWY_INLINE Division(std::uint32_t divisor)
      : exact_(std::has_single_bit(divisor)),
        divisor_(real(divisor)),
        reciprocal_(real(1.0 / divisor)) {}

  // Returns the quotient, rounded to odd.
  HWY_INLINE Reals operator()(Reals sum) const {
    if (exact_) return hn::Mul(sum, reciprocal_);
    const auto quotient = hn::Div(sum, divisor_);
    return to_odd(quotient, rest(sum, quotient));
  }

 private:
  // sum - quotient * divisor, which is a double.
  HWY_INLINE Reals rest(Reals sum, Reals quotient) const {
#if HWY_NATIVE_FMA
    return hn::NegMulAdd(quotient, divisor_, sum);
#else
    // The products of the upper 24 and the lower 29 bits of the quotient with 24 bits are doubles
    // too.
    const auto mask = hn::BitCast(Doubles(), hn::Set(LongWords(), ~((std::uint64_t{1} << 29) - 1)));
    const auto upper = hn::And(quotient, mask);
    const auto left = hn::Sub(sum, hn::Mul(upper, divisor_));
    return hn::Sub(left, hn::Mul(hn::Sub(quotient, upper), divisor_));
#endif
  }

  bool exact_;
  Reals divisor_, reciprocal_;
};

// Rounds to the nearest number of the format, ties to even. Uses the precision and unit of the
// format (which fp32 contains), but not its upper bound. Adds and subtracts a number so large that
// its last bit is that of the format.
template <Dtype kDtype>
HWY_INLINE Reals round_to(Reals x) {
  constexpr Format kFormat = format_of(kDtype);
  constexpr double kSmallestNormal = kDtype == Dtype::kF16 ? 0x1p-14 : 0x1p-126;
  constexpr double kShift = 1.5 * static_cast<double>(1ULL << (52 - kFormat.mantissa_bits));
  const auto exponent = hn::BitCast(Doubles(), hn::Set(LongWords(), 0x7FF0000000000000));
  const auto power = hn::Max(hn::And(x, exponent), real(kSmallestNormal));
  const auto large = hn::Mul(power, real(kShift));
  const auto rounded = hn::CopySign(hn::Sub(hn::Add(x, large), large), x);
  return hn::IfThenElse(hn::IsFinite(x), rounded, x);
}

HWY_INLINE hn::Vec<Floats> demote(Sums x) {
  return hn::Combine(Floats(), narrowed(x.high), narrowed(x.low));
}

HWY_INLINE void store(hn::Vec<Words> words, std::uint8_t* to) {
  hn::StoreU(hn::BitCast(hn::Repartition<std::uint8_t, Words>(), words),
             hn::Repartition<std::uint8_t, Words>(), to);
}

HWY_INLINE void store_short(hn::Vec<Words> words, std::uint8_t* to) {
  const auto shorts = hn::DemoteTo(Shorts(), hn::BitCast(Ints(), words));
  hn::StoreU(hn::BitCast(hn::Repartition<std::uint8_t, Shorts>(), shorts),
             hn::Repartition<std::uint8_t, Shorts>(), to);
}

// The bits of floats that are numbers of fp16, or too large for it. The inverse of from_half: after
// division by 2^112, exponent and mantissa are in place, and 65,536 becomes infinity.
HWY_INLINE hn::Vec<Words> half_bits(hn::Vec<Floats> floats) {
  const auto size = hn::Min(hn::Abs(floats), hn::Set(Floats(), 65536.0F));
  const auto scaled = hn::BitCast(Words(), hn::Mul(size, hn::Set(Floats(), 0x1p-112F)));
  const auto sign = hn::ShiftRight<31>(hn::BitCast(Words(), floats));
  return hn::Or(hn::ShiftRight<13>(scaled), hn::ShiftLeft<15>(sign));
}

// Rounds once, and writes kLanes elements.
template <Dtype kDtype>
HWY_INLINE void store_rounded(Sums x, std::uint8_t* to) {
  constexpr Format kFormat = format_of(kDtype);
  if constexpr (kDtype != Dtype::kF32) x = {round_to<kDtype>(x.low), round_to<kDtype>(x.high)};
  const auto floats = demote(x);
  const auto nan = hn::RebindMask(Words(), hn::IsNaN(floats));
  auto bits = hn::BitCast(Words(), floats);
  if constexpr (kDtype == Dtype::kBF16) bits = hn::ShiftRight<16>(bits);
  if constexpr (kDtype == Dtype::kF16) bits = half_bits(floats);
  bits = hn::IfThenElse(nan, hn::Set(Words(), std::uint32_t{kFormat.quiet_nan()}), bits);
  if constexpr (kDtype == Dtype::kF32) {
    store(bits, to);
  } else {
    store_short(bits, to);
  }
}

}  // namespace presum::reduce::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
