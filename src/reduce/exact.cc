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
  int pair;  // two do: see sum_pairs
};

// Two bf16 most often have an exact sum in fp32. Among more leaves, one pair of a tile has not.
constexpr std::size_t kLeavesInTwos = 8;

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

// In double.
struct PlainSum {
  Sums sums;

  HWY_INLINE void add(const Vectors& v) {
    sums = {hn::Add(sums.low, v.low), hn::Add(sums.high, v.high)};
  }

  // First in fp32, which halves the conversions.
  HWY_INLINE void add_two(const Vectors& a, const Vectors& b) {
    Vectors v;
    v.floats = hn::Add(a.floats, b.floats);
    base::HWY_NAMESPACE::widen(v);
    add(v);
  }
};

struct PlainTile {
  static constexpr bool kInTwos = false;

  HWY_INLINE PlainSum begin(std::size_t) const { return {{real(0), real(0)}}; }
  HWY_INLINE PlainSum load(std::size_t i) const {
    return {{hn::Load(Doubles(), sums + i), hn::Load(Doubles(), sums + i + kDoubleLanes)}};
  }
  HWY_INLINE void save(std::size_t i, const PlainSum& sum) {
    hn::Store(sum.sums.low, Doubles(), sums + i);
    hn::Store(sum.sums.high, Doubles(), sums + i + kDoubleLanes);
  }

  alignas(64) double sums[kTile];
};

struct TwosTile : PlainTile {
  static constexpr bool kInTwos = true;
};

struct Sizes {
  Bits largest;   // of the leaves' bits without their sign
  Bits smallest;  // of the same, less one, so that zeros do not count

  HWY_INLINE void add(const Vectors& v) {
    const auto size = size_bits(v.floats);
    largest = hn::Max(largest, size);
    smallest = hn::Min(smallest, hn::Sub(size, word(1)));
  }
};

struct SizesTile {
  static constexpr bool kInTwos = false;

  HWY_INLINE Sizes begin(std::size_t) const { return {word(0), word(0xFFFFFFFF)}; }
  HWY_INLINE Sizes load(std::size_t i) const {
    return {hn::Load(Words(), largest + i), hn::Load(Words(), smallest + i)};
  }
  HWY_INLINE void save(std::size_t i, const Sizes& sizes) {
    hn::Store(sizes.largest, Words(), largest + i);
    hn::Store(sizes.smallest, Words(), smallest + i);
  }

  alignas(64) std::uint32_t largest[kTile];
  alignas(64) std::uint32_t smallest[kTile];
};

// A sum of two doubles, for every element.
struct Pairs {
  Sums sum, rest;
};

// A sum in two doubles, both exact. The first is anchored: it begins with a number that is larger
// than all partial sums, so that it is never smaller than what is added.
struct PairSum {
  Sums sum, rest;

  HWY_INLINE void add(const Vectors& v) {
    add(sum.low, rest.low, v.low);
    add(sum.high, rest.high, v.high);
  }

  static HWY_INLINE void add(Reals& sum, Reals& rest, Reals x) {
    const auto before = sum;
    sum = hn::Add(before, x);
    rest = hn::Add(rest, hn::Sub(x, hn::Sub(sum, before)));
  }
};

// 1.5 * 2^(exponent + bits + 2), for biased exponents of fp32.
HWY_INLINE Sums anchors(Bits exponent, int bits) {
  const auto biased = hn::Add(exponent, word(static_cast<std::uint32_t>(bits + 2 + 1023 - 127)));
  const auto low = hn::PromoteTo(LongWords(), hn::LowerHalf(HalfWords(), biased));
  const auto high = hn::PromoteTo(LongWords(), hn::UpperHalf(HalfWords(), biased));
  const auto half = hn::Set(LongWords(), std::uint64_t{1} << 51);
  return {hn::BitCast(Doubles(), hn::Or(hn::ShiftLeft<52>(low), half)),
          hn::BitCast(Doubles(), hn::Or(hn::ShiftLeft<52>(high), half))};
}

class PairTile {
 public:
  static constexpr bool kInTwos = false;

  // For 2^bits leaves.
  HWY_INLINE PairTile(const SizesTile& sizes, int bits) : sizes_(sizes), bits_(bits) {}

  HWY_INLINE PairSum begin(std::size_t i) const { return {anchor(i), {real(0), real(0)}}; }
  HWY_INLINE PairSum load(std::size_t i) const { return {sums_.load(i).sums, rests_.load(i).sums}; }
  HWY_INLINE void save(std::size_t i, const PairSum& pair) {
    sums_.save(i, {pair.sum});
    rests_.save(i, {pair.rest});
  }

  HWY_INLINE Pairs result(std::size_t i) const {
    const Sums from = anchor(i);
    const PairSum pair = load(i);
    return {{hn::Sub(pair.sum.low, from.low), hn::Sub(pair.sum.high, from.high)}, pair.rest};
  }

 private:
  HWY_INLINE Sums anchor(std::size_t i) const {
    const auto exponent = exponent_of(sizes_.load(i).largest);
    return anchors(hn::Max(exponent, word(1)), bits_);
  }

  const SizesTile& sizes_;
  int bits_;
  PlainTile sums_, rests_;
};

// Of leaves that are not zero; denormals have the exponent 1.
HWY_INLINE Bits smallest_exponent(const Sizes& sizes) {
  return hn::Max(exponent_of(hn::Add(sizes.smallest, word(1))), word(1));
}

HWY_INLINE hn::Mask<Words> wider(Bits largest, Bits smallest, int limit) {
  const Ints d;
  const auto spread = hn::BitCast(d, hn::Sub(largest, smallest));
  return hn::RebindMask(Words(), hn::Gt(spread, hn::Set(d, limit)));
}

HWY_INLINE hn::Mask<Words> wider(const Sizes& sizes, int limit) {
  return wider(exponent_of(sizes.largest), smallest_exponent(sizes), limit);
}

// With an infinity or NaN among the leaves.
HWY_INLINE hn::Mask<Words> special(const Sizes& sizes) {
  return hn::Eq(exponent_of(sizes.largest), word(255));
}

HWY_INLINE bool any(hn::Mask<Words> mask) { return !hn::AllFalse(Words(), mask); }

HWY_INLINE Reals odd(Reals sum, Reals rest) {
  const Pair pair = two_sum(sum, rest);
  return to_odd(pair.sum, pair.rest);
}

HWY_INLINE Sums odd(const Pairs& p) {
  return {odd(p.sum.low, p.rest.low), odd(p.sum.high, p.rest.high)};
}

template <Dtype kDtype>
class Exact {
 public:
  HWY_INLINE Exact(Leaves leaves, std::uint32_t divisor, std::uint8_t* out)
      : leaves_(leaves),
        limits_(limits_of(kDtype, leaves.size())),
        divisor_(divisor),
        divide_(divisor),
        out_(out),
        in_twos_(kDtype == Dtype::kBF16 && leaves.size() <= kLeavesInTwos) {}

  // REQUIRES: count is a multiple of kLanes.
  HWY_INLINE void run(std::size_t count) {
    const std::size_t tile = tile_of(leaves_.size());
    for (std::size_t first = 0; first < count; first += tile) {
      sum_tile(first, std::min(tile, count - first));
    }
  }

 private:
  static constexpr std::size_t kBytes = element_bytes(kDtype);

  // Most often no addition in a tile is rounded. The processor reports it, which is the cheapest
  // proof. Where the tile before needed more, there is no use in trying.
  HWY_INLINE void sum_tile(std::size_t first, std::size_t size) {
    if (!narrow_ || !base::inexact_is_reported()) {
      sum_by_sizes(first, size, false);
    } else if (!try_plainly(first, size)) {
      sum_by_sizes(first, size, !in_twos_);
    }
  }

  HWY_INLINE bool try_plainly(std::size_t first, std::size_t size) {
    base::clear_inexact();
    if (in_twos_) {
      add_leaves<kDtype>(leaves_, first, size, plain_);
    } else {
      add_leaves<kDtype>(leaves_, first, size, static_cast<PlainTile&>(plain_));
    }
    if (base::inexact(&plain_)) return false;
    for (std::size_t i = 0; i < size; i += kLanes) put(plain_.load(i).sums, first + i);
    return true;
  }

  // `summed`: the plain sums, as far as they are exact, are in the tile.
  HWY_NOINLINE void sum_by_sizes(std::size_t first, std::size_t size, bool summed) {
    add_leaves<kDtype>(leaves_, first, size, sizes_);
    std::size_t wide = 0;
    for (std::size_t i = 0; i < size; i += kLanes) {
      wide += any(wider(sizes_.load(i), limits_.one)) ? 1 : 0;
    }
    narrow_ = wide * kLanes * 4 <= size;
    if (!narrow_) {
      sum_in_pairs(first, size);
      return;
    }
    if (!summed) add_leaves<kDtype>(leaves_, first, size, static_cast<PlainTile&>(plain_));
    put_plain_sums(first, size);
  }

  HWY_INLINE void put_plain_sums(std::size_t first, std::size_t size) {
    for (std::size_t i = 0; i < size; i += kLanes) {
      const Sizes sizes = sizes_.load(i);
      // Infinities and NaNs do no harm: the sum is then what the result has to be.
      if (any(hn::AndNot(special(sizes), wider(sizes, limits_.one)))) {
        sum_in_windows(sizes, first + i);
      } else {
        put(plain_.load(i).sums, first + i);
      }
    }
  }

  HWY_INLINE void sum_in_pairs(std::size_t first, std::size_t size) {
    PairTile pairs(sizes_, leaf_bits(leaves_.size()));
    add_leaves<kDtype>(leaves_, first, size, pairs);
    for (std::size_t i = 0; i < size; i += kLanes) {
      const Sizes sizes = sizes_.load(i);
      if (any(hn::Or(special(sizes), wider(sizes, limits_.pair)))) {
        sum_in_windows(sizes, first + i);
      } else {
        put(odd(pairs.result(i)), first + i);
      }
    }
  }

  HWY_INLINE void put(Sums sums, std::size_t i) const {
    store_rounded<kDtype>({divide_(sums.low), divide_(sums.high)}, out_ + i * kBytes);
  }

  // Leaves near the largest and all others apart: most often the others are near each other too,
  // denormals say. Then both sums are exact. What is still too wide is summed one by one.
  HWY_NOINLINE void sum_in_windows(const Sizes& sizes, std::size_t i) const {
    const auto largest = hn::BitCast(Ints(), exponent_of(sizes.largest));
    const auto least = hn::Max(largest, hn::Set(Ints(), limits_.one + 1));
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
    const auto beyond = wider(exponent_of(largest_other), smallest_exponent(sizes), limits_.one);
    put_some_one_by_one(hn::Or(beyond, special(sizes)), odd(p), i);
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
  bool in_twos_;
  bool narrow_ = true;  // as the tile before
  TwosTile plain_;
  SizesTile sizes_;
};

template <Dtype kDtype>
void exact_of(Leaves leaves, std::size_t count, std::uint32_t divisor, void* out) {
  Exact<kDtype> exact(leaves, divisor, static_cast<std::uint8_t*>(out));
  const std::size_t in_vectors = count / kLanes * kLanes;
  exact.run(in_vectors);
  exact_reference(leaves, kDtype, in_vectors, count - in_vectors, divisor, out);
}

void exact_vectors(Leaves leaves, Dtype dtype, std::size_t count, std::uint32_t divisor,
                   void* out) {
  switch (dtype) {
    case Dtype::kF32:
      return exact_of<Dtype::kF32>(leaves, count, divisor, out);
    case Dtype::kBF16:
      return exact_of<Dtype::kBF16>(leaves, count, divisor, out);
    case Dtype::kF16:
      return exact_of<Dtype::kF16>(leaves, count, divisor, out);
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
