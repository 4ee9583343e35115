// SPDX-License-Identifier: Apache-2.0
#include "reduce/exact.h"

#include <algorithm>

#include "base/float_environment.h"
#include "base/simd_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "reduce/exact.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "reduce/rounding-inl.h"

#ifndef PRESUM_REDUCE_EXACT_ONCE
#define PRESUM_REDUCE_EXACT_ONCE

namespace presum::reduce {
namespace {

// How far apart the exponents of an element's leaves may be. Largest and smallest exponent of the
// leaves that are not zero; L = ceil(log2(leaves)); a leaf has M bits. All partial sums are
// multiples of 2^(smallest - M + 1) and at most 2^(largest + L + 1).
struct Limits {
  int one;   // one double holds every partial sum: spread + M + L <= 53
  int pair;  // two do: the rounding errors, below 2^(largest + 2L - 53) together, fit the second
};

constexpr Limits limits_of(Dtype dtype, std::size_t leaves) {
  const int bits = format_of(dtype).precision();
  return {53 - bits - leaf_bits(leaves), 105 - bits - 2 * leaf_bits(leaves)};
}

}  // namespace
}  // namespace presum::reduce

#endif  // PRESUM_REDUCE_EXACT_ONCE

HWY_BEFORE_NAMESPACE();
namespace presum::reduce {
namespace {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

void exact_vectors(Leaves leaves, Dtype dtype, std::size_t count, std::uint32_t divisor,
                   void* out) {
  exact_reference(leaves, dtype, 0, count, divisor, out);
}

#else

using namespace reduce::HWY_NAMESPACE;

// The sum in double, and what tells whether it is exact.
template <bool kChecked>
struct Sum {
  Sums sums;
  Bits largest;   // of the leaves' bits without their sign
  Bits smallest;  // of the same, less one, so that zeros do not count

  HWY_INLINE void add(const Vectors& v) {
    sums = {hn::Add(sums.low, v.low), hn::Add(sums.high, v.high)};
    if constexpr (kChecked) {
      const auto size = size_bits(v.floats);
      largest = hn::Max(largest, size);
      smallest = hn::Min(smallest, hn::Sub(size, word(1)));
    }
  }
};

template <bool kChecked>
class Tile {
 public:
  HWY_INLINE Sum<kChecked> begin(std::size_t) const {
    return {{real(0), real(0)}, word(0), word(0xFFFFFFFF)};
  }

  HWY_INLINE Sum<kChecked> load(std::size_t i) const {
    return {
        {hn::Load(Doubles(), sums_ + i), hn::Load(Doubles(), sums_ + i + kDoubleLanes)},
        hn::Load(Words(), largest_ + i),
        hn::Load(Words(), smallest_ + i),
    };
  }

  HWY_INLINE void save(std::size_t i, const Sum<kChecked>& sum) {
    hn::Store(sum.sums.low, Doubles(), sums_ + i);
    hn::Store(sum.sums.high, Doubles(), sums_ + i + kDoubleLanes);
    hn::Store(sum.largest, Words(), largest_ + i);
    hn::Store(sum.smallest, Words(), smallest_ + i);
  }

 private:
  alignas(64) double sums_[kTile];
  alignas(64) std::uint32_t largest_[kTile];
  alignas(64) std::uint32_t smallest_[kTile];
};

// Of leaves that are not zero; denormals have the exponent 1.
template <class Sum>
HWY_INLINE Bits smallest_exponent(const Sum& a) {
  return hn::Max(exponent_of(hn::Add(a.smallest, word(1))), word(1));
}

HWY_INLINE hn::Mask<Words> wider(Bits largest, Bits smallest, int limit) {
  const Ints d;
  const auto spread = hn::BitCast(d, hn::Sub(largest, smallest));
  return hn::RebindMask(Words(), hn::Gt(spread, hn::Set(d, limit)));
}

// A sum of two doubles, for every element.
struct Pairs {
  Sums sum, rest;
};

HWY_INLINE Reals odd(Reals sum, Reals rest) {
  const Pair pair = two_sum(sum, rest);
  return to_odd(pair.sum, pair.rest);
}

HWY_INLINE Sums odd(const Pairs& p) {
  return {odd(p.sum.low, p.rest.low), odd(p.sum.high, p.rest.high)};
}

HWY_INLINE void add(Reals& sum, Reals& rest, Reals x) {
  const Pair pair = two_sum(sum, x);
  sum = pair.sum;
  rest = hn::Add(rest, pair.rest);
}

template <Dtype kDtype, bool kChecked>
class Exact {
 public:
  HWY_INLINE Exact(Leaves leaves, std::uint32_t divisor, std::uint8_t* out)
      : leaves_(leaves),
        limits_(limits_of(kDtype, leaves.size())),
        divisor_(divisor),
        divide_(divisor),
        out_(out) {}

  // REQUIRES: count is a multiple of kLanes.
  HWY_INLINE void run(std::size_t count) {
    for (std::size_t first = 0; first < count; first += kTile) {
      const std::size_t size = std::min(kTile, count - first);
      add_leaves<kDtype>(leaves_, first, size, tile_);
      finish(first, size);
    }
  }

 private:
  static constexpr std::size_t kBytes = element_bytes(kDtype);
  using Found = Sum<kChecked>;

  HWY_INLINE void finish(std::size_t first, std::size_t size) {
    for (std::size_t i = 0; i < size; i += kLanes) {
      const Found a = tile_.load(i);
      if (kChecked && !hn::AllFalse(Words(), too_wide(a))) {
        repair(a, first + i);
      } else {
        put(a.sums, first + i);
      }
    }
  }

  HWY_INLINE void put(Sums sums, std::size_t i) const {
    store_rounded<kDtype>({divide_(sums.low), divide_(sums.high)}, out_ + i * kBytes);
  }

  // Where the sum is perhaps not exact. Infinities and NaNs do no harm: the sum is then what the
  // result has to be.
  HWY_INLINE hn::Mask<Words> too_wide(const Found& a) const {
    const auto largest = exponent_of(a.largest);
    return hn::And(wider(largest, smallest_exponent(a), limits_.one), hn::Ne(largest, word(255)));
  }

  // Reads the leaves of kLanes elements again.
  HWY_NOINLINE void repair(const Found& a, std::size_t i) const {
    const auto largest = exponent_of(a.largest);
    const auto smallest = smallest_exponent(a);
    const auto beyond = hn::And(wider(largest, smallest, limits_.pair), hn::Ne(largest, word(255)));
    if (hn::AllFalse(Words(), beyond)) {
      put(unless_special(a, odd(sum_pairs(i))), i);
    } else {
      sum_windows(a, i);
    }
  }

  static HWY_INLINE Sums unless_special(const Found& a, Sums sums) {
    return {hn::IfThenElse(hn::IsFinite(a.sums.low), sums.low, a.sums.low),
            hn::IfThenElse(hn::IsFinite(a.sums.high), sums.high, a.sums.high)};
  }

  HWY_INLINE Pairs sum_pairs(std::size_t i) const {
    Pairs p{{real(0), real(0)}, {real(0), real(0)}};
    for (const void* leaf : leaves_) {
      const Vectors v = read<kDtype>(element<kDtype>(leaf, i));
      add(p.sum.low, p.rest.low, v.low);
      add(p.sum.high, p.rest.high, v.high);
    }
    return p;
  }

  // Leaves near the largest and all others apart: most often the others are near each other too,
  // denormals say. Then both sums are exact. What is still too wide is summed one by one.
  HWY_INLINE void sum_windows(const Found& a, std::size_t i) const {
    const auto least =
        hn::Max(hn::BitCast(Ints(), exponent_of(a.largest)), hn::Set(Ints(), limits_.one + 1));
    const auto bound =
        hn::ShiftLeft<23>(hn::BitCast(Words(), hn::Sub(least, hn::Set(Ints(), limits_.one))));
    Pairs p{{real(0), real(0)}, {real(0), real(0)}};
    Bits largest_other = word(0);
    for (const void* leaf : leaves_) {
      const Vectors v = read<kDtype>(element<kDtype>(leaf, i));
      const auto size = size_bits(v.floats);
      const auto other = hn::Lt(size, bound);
      const Masks others = widen(other);
      largest_other = hn::Max(largest_other, hn::IfThenElseZero(other, size));
      p.sum.low = hn::Add(p.sum.low, hn::IfThenZeroElse(others.low, v.low));
      p.sum.high = hn::Add(p.sum.high, hn::IfThenZeroElse(others.high, v.high));
      p.rest.low = hn::Add(p.rest.low, hn::IfThenElseZero(others.low, v.low));
      p.rest.high = hn::Add(p.rest.high, hn::IfThenElseZero(others.high, v.high));
    }
    const auto beyond = wider(exponent_of(largest_other), smallest_exponent(a), limits_.one);
    const auto finite = hn::Ne(exponent_of(a.largest), word(255));
    put_some_one_by_one(hn::And(beyond, finite), unless_special(a, odd(p)), i);
  }

  // The chosen elements by the reference, before any is written: `out` may be one of the leaves.
  HWY_INLINE void put_some_one_by_one(hn::Mask<Words> chosen, Sums others, std::size_t i) const {
    alignas(64) std::uint32_t wanted[kLanes];
    std::uint64_t bits[kLanes];
    hn::Store(hn::VecFromMask(Words(), chosen), Words(), wanted);
    for (std::size_t j = 0; j < kLanes; ++j) {
      if (wanted[j] != 0) bits[j] = exact_sum(leaves_, kDtype, i + j, divisor_);
    }
    put(others, i);
    for (std::size_t j = 0; j < kLanes; ++j) {
      if (wanted[j] != 0) set_element_bits(out_, i + j, kDtype, bits[j]);
    }
  }

  Leaves leaves_;
  Limits limits_;
  std::uint32_t divisor_;
  Division divide_;
  std::uint8_t* out_;
  Tile<kChecked> tile_;
};

template <Dtype kDtype, bool kChecked>
void exact_of(Leaves leaves, std::size_t count, std::uint32_t divisor, void* out) {
  Exact<kDtype, kChecked> exact(leaves, divisor, static_cast<std::uint8_t*>(out));
  const std::size_t in_vectors = count / kLanes * kLanes;
  exact.run(in_vectors);
  exact_reference(leaves, kDtype, in_vectors, count - in_vectors, divisor, out);
}

// The bits of fp16 span 40 binary places, so that many leaves need no check.
constexpr std::size_t kHalvesUnchecked = std::size_t{1} << 13;

void exact_vectors(Leaves leaves, Dtype dtype, std::size_t count, std::uint32_t divisor,
                   void* out) {
  switch (dtype) {
    case Dtype::kF32:
      return exact_of<Dtype::kF32, true>(leaves, count, divisor, out);
    case Dtype::kBF16:
      return exact_of<Dtype::kBF16, true>(leaves, count, divisor, out);
    case Dtype::kF16:
      if (leaves.size() > kHalvesUnchecked) {
        return exact_of<Dtype::kF16, true>(leaves, count, divisor, out);
      }
      return exact_of<Dtype::kF16, false>(leaves, count, divisor, out);
    case Dtype::kF64:
      return exact_reference(leaves, dtype, 0, count, divisor, out);
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

HWY_EXPORT(exact_vectors);

}  // namespace

void exact_kernel(Leaves leaves, Dtype dtype, std::size_t count, std::uint32_t divisor, void* out) {
  const base::DefaultFloatEnvironment environment;
  if (divisor > kKernelDivisorMax) return exact_reference(leaves, dtype, 0, count, divisor, out);
  PRESUM_SIMD_DISPATCH(exact_vectors)(leaves, dtype, count, divisor, out);
}

}  // namespace presum::reduce

#endif  // HWY_ONCE
