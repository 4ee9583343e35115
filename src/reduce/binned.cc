// SPDX-License-Identifier: Apache-2.0
#include "reduce/binned.h"

#include "base/float_environment.h"
#include "base/simd_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "reduce/binned.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "reduce/leaves-inl.h"
#include "reduce/rounding-inl.h"

HWY_BEFORE_NAMESPACE();
namespace presum::reduce {
namespace {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

void add_vectors(const Binned& sum, std::size_t count, const void* leaf, Dtype dtype) {
  binned_add_reference(sum, 0, count, leaf, dtype);
}

void decode_vectors(const Binned& sum, std::size_t count, std::uint32_t divisor, Dtype dtype,
                    void* out) {
  binned_decode_reference(sum, 0, count, divisor, dtype, out);
}

#else

using namespace reduce::HWY_NAMESPACE;

using Integers = hn::Vec<LongInts>;

HWY_INLINE bool any(hn::Mask<Words> mask) { return !hn::AllFalse(Words(), mask); }

// The bin of an element's leading bit; of zero, none. A float of exponent e >= 1 leads with the bit
// 2^(e - 127), which is bit e + 22 of all.
HWY_INLINE Bits bin_of(Bits size) {
  static_assert(kBinBits == 40);
  const auto place = hn::Add(exponent_of(size), word(22));
  const auto bin = hn::ShiftRight<13>(hn::Mul(place, word(205)));  // place / 40, up to 1638
  return hn::IfThenZeroElse(hn::Eq(size, word(0)), hn::Add(bin, word(1)));
}

// 2^-bin_unit(bin)
HWY_INLINE Sums scale_to(Bits bin) {
  const auto unit = hn::Mul(bin, word(kBinBits));
  return powers_of_two(hn::Sub(word(static_cast<std::uint32_t>(-bin_unit(0))), unit));
}

struct Digits {
  Integers high, low;
};

HWY_INLINE Integers to_integer(Reals whole) {
  const auto bits = hn::Sub(long_words(hn::Add(whole, real(kMagic))), long_words(real(kMagic)));
  return hn::BitCast(LongInts(), bits);
}

// Everything here is exact.
HWY_INLINE Digits digits_of(Reals x, Reals scale) {
  const auto scaled = hn::Mul(x, scale);
  const auto whole = hn::Trunc(scaled);
  const auto rest = hn::Mul(hn::Sub(scaled, whole), real(0x1p40));
  return {to_integer(whole), to_integer(hn::Trunc(rest))};
}

HWY_INLINE Digits load_digits(const Binned& sum, std::size_t i) {
  return {hn::LoadU(LongInts(), sum.high + i), hn::LoadU(LongInts(), sum.low + i)};
}

HWY_INLINE void add_digits(const Binned& sum, std::size_t i, const Digits& digits) {
  const Digits before = load_digits(sum, i);
  hn::StoreU(hn::Add(before.high, digits.high), LongInts(), sum.high + i);
  hn::StoreU(hn::Add(before.low, digits.low), LongInts(), sum.low + i);
}

// What is left of digits where the top stays, or goes up by one.
HWY_INLINE void move_digits(const Binned& sum, std::size_t i, hn::Mask<Doubles> stays,
                            hn::Mask<Doubles> by_one) {
  const auto same = hn::RebindMask(LongInts(), stays);
  const auto next = hn::RebindMask(LongInts(), by_one);
  const Digits before = load_digits(sum, i);
  const auto low = hn::IfThenElse(next, before.high, hn::IfThenElseZero(same, before.low));
  hn::StoreU(hn::IfThenElseZero(same, before.high), LongInts(), sum.high + i);
  hn::StoreU(low, LongInts(), sum.low + i);
}

HWY_INLINE void raise(const Binned& sum, std::size_t i, Bits from, Bits to) {
  const Masks stays = widen(hn::Eq(from, to));
  const Masks by_one = widen(hn::Eq(hn::Add(from, word(1)), to));
  move_digits(sum, i, stays.low, by_one.low);
  move_digits(sum, i + kDoubleLanes, stays.high, by_one.high);
  hn::StoreU(hn::TruncateTo(Bytes(), to), Bytes(), sum.top + i);
}

template <Dtype kDtype>
HWY_INLINE void add_vector(const Binned& sum, std::size_t i, const void* leaf) {
  const Vectors v = read<kDtype>(element<kDtype>(leaf, i));
  const Bits size = size_bits(v.floats);
  const Bits top = load_bytes(sum.top + i);
  const auto infinite = hn::Eq(exponent_of(size), word(255));
  if (any(hn::Or(infinite, hn::Eq(top, word(kSpecialBin))))) {
    binned_add_reference(sum, i, kLanes, leaf, kDtype);
    return;
  }
  const Bits raised = hn::Max(top, bin_of(size));
  if (any(hn::Ne(raised, top))) raise(sum, i, top, raised);
  const Sums scale = scale_to(raised);
  add_digits(sum, i, digits_of(v.low, scale.low));
  add_digits(sum, i + kDoubleLanes, digits_of(v.high, scale.high));
}

template <Dtype kDtype>
void add_of(const Binned& sum, std::size_t count, const void* leaf) {
  const std::size_t in_vectors = count / kLanes * kLanes;
  for (std::size_t i = 0; i < in_vectors; i += kLanes) add_vector<kDtype>(sum, i, leaf);
  binned_add_reference(sum, in_vectors, count - in_vectors, leaf, kDtype);
}

void add_vectors(const Binned& sum, std::size_t count, const void* leaf, Dtype dtype) {
  switch (dtype) {
    case Dtype::kBF16:
      return add_of<Dtype::kBF16>(sum, count, leaf);
    case Dtype::kF16:
      return add_of<Dtype::kF16>(sum, count, leaf);
    default:
      return add_of<Dtype::kF32>(sum, count, leaf);
  }
}

// Below 2^53, so that they are doubles.
HWY_INLINE bool are_small(const Digits& d) {
  const auto middle = hn::Set(LongInts(), std::int64_t{1} << 53);
  const auto high = hn::BitCast(LongWords(), hn::Add(d.high, middle));
  const auto low = hn::BitCast(LongWords(), hn::Add(d.low, middle));
  const auto excess = hn::ShiftRight<54>(hn::Or(high, low));
  return hn::AllTrue(LongWords(), hn::Eq(excess, hn::Zero(LongWords())));
}

// high * 2^40 + low, rounded to odd.
HWY_INLINE Reals sum_of(const Digits& d) {
  const auto high = hn::Mul(integers_to_odd(d.high), real(0x1p40));
  const Pair pair = two_sum(high, integers_to_odd(d.low));
  return to_odd(pair.sum, pair.rest);
}

template <Dtype kDtype>
void decode_of(const Binned& sum, std::size_t count, std::uint32_t divisor, void* out) {
  const Division divide(divisor);
  const std::size_t in_vectors = count / kLanes * kLanes;
  for (std::size_t i = 0; i < in_vectors; i += kLanes) {
    const Bits top = load_bytes(sum.top + i);
    const Digits low = load_digits(sum, i), high = load_digits(sum, i + kDoubleLanes);
    if (any(hn::Eq(top, word(kSpecialBin))) || !are_small(low) || !are_small(high)) {
      binned_decode_reference(sum, i, kLanes, divisor, kDtype, out);
      continue;
    }
    const auto unit =
        hn::Add(hn::Mul(top, word(kBinBits)), word(static_cast<std::uint32_t>(bin_unit(-1))));
    const Sums scale = powers_of_two(unit);
    store_rounded<kDtype>(
        {divide(hn::Mul(sum_of(low), scale.low)), divide(hn::Mul(sum_of(high), scale.high))},
        static_cast<std::uint8_t*>(out) + i * element_bytes(kDtype));
  }
  binned_decode_reference(sum, in_vectors, count - in_vectors, divisor, kDtype, out);
}

void decode_vectors(const Binned& sum, std::size_t count, std::uint32_t divisor, Dtype dtype,
                    void* out) {
  switch (dtype) {
    case Dtype::kBF16:
      return decode_of<Dtype::kBF16>(sum, count, divisor, out);
    case Dtype::kF16:
      return decode_of<Dtype::kF16>(sum, count, divisor, out);
    default:
      return decode_of<Dtype::kF32>(sum, count, divisor, out);
  }
}

#endif

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace
}  // namespace presum::reduce
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace presum::reduce {
namespace {

HWY_EXPORT(add_vectors);
HWY_EXPORT(decode_vectors);

}  // namespace

void binned_add_kernel(const Binned& sum, std::size_t count, const void* leaf, Dtype dtype) {
  const base::DefaultFloatEnvironment environment;
  PRESUM_SIMD_DISPATCH(add_vectors)(sum, count, leaf, dtype);
}

void binned_decode_kernel(const Binned& sum, std::size_t count, std::uint32_t divisor, Dtype dtype,
                          void* out) {
  const base::DefaultFloatEnvironment environment;
  if (divisor > kKernelDivisorMax) {
    binned_decode_reference(sum, 0, count, divisor, dtype, out);
  } else {
    PRESUM_SIMD_DISPATCH(decode_vectors)(sum, count, divisor, dtype, out);
  }
}

}  // namespace presum::reduce

#endif  // HWY_ONCE
