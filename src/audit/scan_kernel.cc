// SPDX-License-Identifier: Apache-2.0
#include "audit/scan_kernel.h"

#include <algorithm>
#include <bit>

#include "base/float_environment.h"
#include "base/simd_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "audit/scan_kernel.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h:
#include "base/vectors-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace presum::audit {
namespace {
namespace HWY_NAMESPACE {

using Pointers = std::span<const void* const>;

namespace hn = hwy::HWY_NAMESPACE;
using namespace base::HWY_NAMESPACE;

using Mask = hn::Mask<Doubles>;
using Integers = hn::RebindToSigned<Doubles>;
using Small = hn::Rebind<std::uint32_t, LongWords>;

constexpr std::size_t kVectors = kScanLanes / kDoubleLanes;
constexpr std::size_t kGroup = 8;  // leaves added in one pass

HWY_INLINE hn::Vec<LongWords> bits(Reals x) { return hn::BitCast(LongWords(), x); }
HWY_INLINE hn::Vec<LongWords> word(std::uint64_t x) { return hn::Set(LongWords(), x); }

// Sums of a tile in double, and sums of absolute values.
struct Tile {
  alignas(64) double sums[kScanTile];
  alignas(64) double sizes[kScanTile];

  template <Dtype kDtype, std::size_t kCount>
  HWY_INLINE void add_leaves(const void* const* leaves, std::size_t first, std::size_t count,
                             bool begin) {
    constexpr std::size_t kBytes = element_bytes(kDtype);
    const std::uint8_t* from[kCount];
    for (std::size_t j = 0; j < kCount; ++j) from[j] = element<kDtype>(leaves[j], first);
    const Doubles d;
    for (std::size_t i = 0; i < count; i += kLanes) {
      const std::size_t k = i + kDoubleLanes;
      auto low = begin ? hn::Zero(d) : hn::Load(d, sums + i);
      auto high = begin ? hn::Zero(d) : hn::Load(d, sums + k);
      auto low_size = begin ? hn::Zero(d) : hn::Load(d, sizes + i);
      auto high_size = begin ? hn::Zero(d) : hn::Load(d, sizes + k);
      // Prefetches every second line of the next tile; the others follow while this tile is judged.
      for (std::size_t j = 0; j < kCount && i * kBytes % 128 == 0; ++j) {
        prefetch(from[j], (i + count) * kBytes);
      }
      for (std::size_t j = 0; j < kCount; ++j) {
        const Vectors v = read<kDtype>(from[j] + i * kBytes);
        low = hn::Add(low, v.low);
        high = hn::Add(high, v.high);
        low_size = hn::Add(low_size, hn::Abs(v.low));
        high_size = hn::Add(high_size, hn::Abs(v.high));
      }
      hn::Store(low, d, sums + i);
      hn::Store(high, d, sums + k);
      hn::Store(low_size, d, sizes + i);
      hn::Store(high_size, d, sizes + k);
    }
  }

  // Returns whether no addition was rounded.
  template <Dtype kDtype>
  HWY_INLINE bool add_all(Pointers leaves, std::size_t first, std::size_t count) {
    base::clear_inexact();
    std::size_t leaf = 0;
    for (; leaf + kGroup <= leaves.size(); leaf += kGroup) {
      add_leaves<kDtype, kGroup>(leaves.data() + leaf, first, count, leaf == 0);
    }
    for (; leaf < leaves.size(); ++leaf) {
      add_leaves<kDtype, 1>(leaves.data() + leaf, first, count, leaf == 0);
    }
    return !base::inexact(this) && base::inexact_is_reported();
  }
};

// One vector of elements, before their errors are counted.
struct Elements {
  Reals result, sum, size, mean;
  Reals rounded;  // the exact sum or mean, rounded once
};

// Separate from everything whose address a function receives, so that it stays in registers.
struct Lanes {
  Reals squared_errors[kVectors], squared_sums[kVectors], ratios[kVectors], largest[kVectors];
  std::size_t beyond = 0;  // beyond the bound of the widest format

  HWY_INLINE explicit Lanes(const ScanSums& s) {
    const Doubles d;
    for (std::size_t v = 0; v < kVectors; ++v) {
      squared_errors[v] = hn::Load(d, s.squared_errors.data() + v * kDoubleLanes);
      squared_sums[v] = hn::Load(d, s.squared_sums.data() + v * kDoubleLanes);
      ratios[v] = hn::Load(d, s.ratios.data() + v * kDoubleLanes);
      largest[v] = hn::Load(d, s.largest_ratios.data() + v * kDoubleLanes);
    }
  }

  HWY_INLINE void save(ScanSums& s) const {
    const Doubles d;
    for (std::size_t v = 0; v < kVectors; ++v) {
      hn::Store(squared_errors[v], d, s.squared_errors.data() + v * kDoubleLanes);
      hn::Store(squared_sums[v], d, s.squared_sums.data() + v * kDoubleLanes);
      hn::Store(ratios[v], d, s.ratios.data() + v * kDoubleLanes);
      hn::Store(largest[v], d, s.largest_ratios.data() + v * kDoubleLanes);
    }
    s.counts[0] += beyond;
  }

  HWY_INLINE void add(const Elements& e, Reals error, Reals off, std::size_t v) {
    squared_errors[v] = hn::Add(squared_errors[v], hn::Mul(error, error));
    squared_sums[v] = hn::Add(squared_sums[v], hn::Mul(e.sum, e.sum));
    const Reals ratio = hn::Div(off, hn::Max(e.size, real(0x1p-1000)));
    ratios[v] = hn::Add(ratios[v], ratio);
    largest[v] = hn::Max(largest[v], ratio);
  }
};

// Keeps elements where the result and the values of all ranks are zero; turns other unsound
// elements into zeros.
HWY_NOINLINE Elements leave(Elements e, Mask sound, std::size_t at, ScannedTile& tile) {
  const Mask zero = hn::And(hn::Eq(e.size, real(0)), hn::Eq(e.result, real(0)));
  std::uint8_t left[8] = {};
  hn::StoreMaskBits(Doubles(), hn::Not(hn::Or(sound, zero)), left);
  for (unsigned set = left[0]; set != 0; set &= set - 1) {
    tile.left[tile.left_count++] =
        static_cast<std::uint16_t>(at + static_cast<std::size_t>(std::countr_zero(set)));
  }
  e.result = hn::IfThenElseZero(sound, e.result);
  e.sum = hn::IfThenElseZero(sound, e.sum);
  e.size = hn::IfThenElseZero(sound, e.size);
  e.mean = hn::IfThenElseZero(sound, e.mean);
  e.rounded = hn::IfThenElseZero(sound, e.rounded);
  return e;
}

HWY_INLINE Mask is_value(const ScanPlan::Limit& limit, Reals x) {
  const Reals size = hn::Abs(x);
  const auto rest = hn::And(bits(x), word(limit.behind));
  const Mask normal = hn::And(hn::RebindMask(Doubles(), hn::Eq(rest, word(0))),
                              hn::Le(size, real(limit.most_finite)));
  const Reals steps = hn::Mul(size, real(limit.least_spacing));
  const Mask small = hn::Eq(hn::Round(steps), steps);
  const Mask tiny = hn::Lt(size, real(limit.least_normal));
  return hn::Or(hn::And(tiny, small), hn::AndNot(tiny, normal));
}

HWY_INLINE Reals rounding(const ScanPlan::Limit& limit, Reals result, Reals size, Reals power) {
  const Reals fine = hn::Add(hn::Mul(hn::Max(power, real(limit.least_power)), real(limit.half_ulp)),
                             real(limit.tiny));
  if (limit.own) return fine;
  return hn::IfThenElse(is_value(limit, result), fine, hn::Mul(size, real(limit.coarse)));
}

// Counts for the other formats. Called if an element exceeds the sieve's bound; within that bound
// it is within the bounds of all these formats.
HWY_NOINLINE void judge_others(const ScanPlan& plan, Elements e, Reals off, Reals size, Reals power,
                               ScanSums& sums) {
  const Reals usual = hn::Add(hn::Mul(e.size, real(plan.usual_of_values)),
                              hn::Mul(hn::Abs(e.sum), real(plan.usual_of_sum)));
  Mask far = hn::Gt(off, real(0));
  for (std::size_t f = 1; f < plan.formats; ++f) {
    const ScanPlan::Limit& limit = plan.limits[f];
    const Reals least = rounding(limit, e.result, size, power);
    const Reals most = hn::Mul(e.size, real(limit.relative));
    sums.counts[f] += hn::CountTrue(Doubles(), hn::Gt(off, hn::Add(least, most)));
    if (!limit.narrowest) continue;
    const Reals usually = hn::Min(most, hn::Mul(usual, real(limit.unit)));
    far = hn::And(far, hn::Gt(off, hn::Add(least, usually)));
  }
  sums.counts[plan.formats] += hn::CountTrue(Doubles(), far);
}

template <Dtype kDtype>
class Loop {
 public:
  HWY_INLINE Loop(const ScanPlan& plan, const Tile& of_leaves, bool exact, ScanSums& sums,
                  ScannedTile& tile)
      : plan_(plan), of_leaves_(of_leaves), exact_(exact), sums_(sums), tile_(tile) {}

  // Adds the elements from `at` on; `vector` is the position of their lanes.
  HWY_INLINE void add(Reals result, std::size_t at, std::size_t vector, Lanes& lanes) {
    const Elements e = elements(result, at);
    const Reals error = hn::Sub(hn::Mul(e.result, real(plan_.divisor)), e.sum);
    const Reals off = hn::Abs(error);
    lanes.add(e, error, off, vector);
    store_ulps(e, at);
    judge(e, off, lanes);
  }

  // Counts small ulp distances in vectors, since most elements have few.
  HWY_INLINE void count_ulps(std::size_t count) const {
    const Words d;
    std::array<std::size_t, ScannedTile::kFew> few{};
    for (std::size_t i = 0; i < count; i += hn::Lanes(d)) {
      const auto ulps = hn::Load(d, ulps_ + i);
      for (std::uint32_t k = 0; k < ScannedTile::kFew; ++k) {
        few[k] += hn::CountTrue(d, hn::Eq(ulps, hn::Set(d, k)));
      }
      const auto many = hn::Gt(ulps, hn::Set(d, ScannedTile::kFew - 1));
      if (hn::AllFalse(d, many)) continue;
      // Compresses to a register first: on one vendor's processors, compressing to memory takes a
      // hundred cycles.
      hn::StoreU(hn::Compress(ulps, many), d, tile_.ulps.data() + tile_.ulps_count);
      tile_.ulps_count += hn::CountTrue(d, many);
    }
    std::ranges::copy(few, tile_.few.begin());
    tile_.few[0] -= tile_.left_count;
  }

 private:
  static constexpr int kShift = ScanPlan::shift_of(kDtype);

  // Rounds to the dtype, ties to even. REQUIRES: a normal result.
  static HWY_INLINE Reals rounded(Reals x) {
    const auto b = bits(x);
    const auto last = hn::And(hn::ShiftRight<kShift>(b), word(1));
    const auto half = word((std::uint64_t{1} << (kShift - 1)) - 1);
    const auto up = hn::Add(b, hn::Add(half, last));
    return hn::BitCast(Doubles(), hn::And(up, word(~((std::uint64_t{1} << kShift) - 1))));
  }

  HWY_INLINE Elements elements(Reals result, std::size_t at) const {
    Elements e{result, hn::Load(Doubles(), of_leaves_.sums + at),
               hn::Load(Doubles(), of_leaves_.sizes + at), real(0), real(0)};
    e.mean = hn::Mul(e.sum, real(plan_.inverse));
    const Reals size = hn::Abs(e.mean), result_size = hn::Abs(result);
    Mask sound = hn::And(hn::And(hn::Ge(hn::Min(size, result_size), real(plan_.least)),
                                 hn::Lt(hn::Max(size, result_size), real(plan_.most))),
                         hn::Gt(hn::Mul(e.mean, result), real(0)));
    e.rounded = rounded(e.mean);
    if (!exact_) {
      const Reals margin =
          hn::Add(hn::Mul(e.size, real(plan_.margin_of_size)), hn::Mul(size, real(0x1p-52)));
      e.rounded = rounded(hn::Sub(e.mean, margin));
      sound = hn::And(sound, hn::Eq(e.rounded, rounded(hn::Add(e.mean, margin))));
    }
    return hn::AllTrue(Doubles(), sound) ? e : leave(e, sound, at, tile_);
  }

  HWY_INLINE void store_ulps(const Elements& e, std::size_t at) {
    const Integers di;
    const auto a = hn::BitCast(di, hn::Abs(e.result));
    const auto b = hn::BitCast(di, hn::Abs(e.rounded));
    const auto distance = hn::BitCast(LongWords(), hn::Abs(hn::Sub(a, b)));
    hn::StoreU(hn::TruncateTo(Small(), hn::ShiftRight<kShift>(distance)), Small(), ulps_ + at);
  }

  // The bound of the widest format is the tightest.
  HWY_INLINE void judge(const Elements& e, Reals off, Lanes& lanes) const {
    const Reals size = hn::Max(hn::Abs(e.result), hn::Abs(e.mean));
    const Reals power =
        hn::BitCast(Doubles(), hn::And(bits(size), word(std::uint64_t{0x7FF} << 52)));
    const ScanPlan::Limit &widest = plan_.limits[0], &sieve = plan_.limits[plan_.sieve];
    const Reals half = hn::Mul(power, real(widest.half_ulp));
    const auto beyond = [&](const ScanPlan::Limit& limit) {
      const Reals rest = hn::Add(hn::Mul(e.size, real(limit.relative)), real(limit.tiny));
      return hn::Gt(off, hn::Add(half, rest));
    };
    lanes.beyond += hn::CountTrue(Doubles(), beyond(widest));
    if (!hn::AllFalse(Doubles(), beyond(sieve))) judge_others(plan_, e, off, size, power, sums_);
  }

  const ScanPlan& plan_;
  const Tile& of_leaves_;
  bool exact_;
  ScanSums& sums_;
  ScannedTile& tile_;
  alignas(64) std::uint32_t ulps_[kScanTile];
};

template <Dtype kDtype>
HWY_INLINE void scan_of(const ScanPlan& plan, Pointers leaves, const void* result,
                        std::size_t first, std::size_t count, ScanSums& sums, ScannedTile& tile) {
  constexpr std::size_t kBytes = element_bytes(kDtype);
  Tile of_leaves;
  const bool exact = of_leaves.add_all<kDtype>(leaves, first, count) && plan.exact_quotient;
  const std::uint8_t* from = element<kDtype>(result, first);
  Loop<kDtype> loop(plan, of_leaves, exact, sums, tile);
  Lanes lanes(sums);
  for (std::size_t i = 0; i < count; i += kScanLanes) {
    if (i * kBytes % 128 == 64) {
      for (const void* leaf : leaves) prefetch(leaf, (first + count + i) * kBytes);
    }
    for (std::size_t v = 0; v < kVectors; v += 2) {
      const std::size_t at = i + v * kDoubleLanes;
      const Vectors values = read<kDtype>(from + at * kBytes);
      loop.add(values.low, at, v, lanes);
      loop.add(values.high, at + kDoubleLanes, v + 1, lanes);
    }
  }
  loop.count_ulps(count);
  lanes.save(sums);
}

void scan_vectors(const ScanPlan& plan, Pointers leaves, const void* result, std::size_t first,
                  std::size_t count, ScanSums& sums, ScannedTile& tile) {
  if (plan.dtype == Dtype::kF32) {
    scan_of<Dtype::kF32>(plan, leaves, result, first, count, sums, tile);
  } else if (plan.dtype == Dtype::kBF16) {
    scan_of<Dtype::kBF16>(plan, leaves, result, first, count, sums, tile);
  } else {
    scan_of<Dtype::kF16>(plan, leaves, result, first, count, sums, tile);
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace
}  // namespace presum::audit
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace presum::audit {

HWY_EXPORT(scan_vectors);

void scan_tile(const ScanPlan& plan, std::span<const void* const> leaves, const void* result,
               std::size_t first, std::size_t count, ScanSums& sums, ScannedTile& tile) {
  tile.ulps_count = tile.left_count = 0;
  PRESUM_SIMD_DISPATCH(scan_vectors)(plan, leaves, result, first, count, sums, tile);
}

}  // namespace presum::audit

#endif  // HWY_ONCE
