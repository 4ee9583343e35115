// SPDX-License-Identifier: Apache-2.0
#include "audit/scan_kernel.h"

#include <algorithm>
#include <bit>

#include "base/float_environment.h"
#include "base/simd_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "audit/scan_kernel.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "base/vectors-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace presum::audit {
namespace {
namespace HWY_NAMESPACE {

using Pointers = std::span<const void* const>;

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

void scan_vectors(const ScanPlan& plan, Pointers leaves, const void* result, std::size_t first,
                  std::size_t count, ScanSums& sums, ScannedTile& tile) {
  scan_tile_reference(plan, leaves, result, first, count, sums, tile);
}

#else

namespace hn = hwy::HWY_NAMESPACE;
using base::HWY_NAMESPACE::Doubles;
using base::HWY_NAMESPACE::kDoubleLanes;
using base::HWY_NAMESPACE::kLanes;
using base::HWY_NAMESPACE::LongWords;
using base::HWY_NAMESPACE::read;
using base::HWY_NAMESPACE::Vectors;

using Reals = hn::Vec<Doubles>;
using Mask = hn::Mask<Doubles>;
using Integers = hn::RebindToSigned<Doubles>;
using Small = hn::Rebind<std::uint32_t, LongWords>;

constexpr std::size_t kVectors = kScanLanes / kDoubleLanes;
constexpr std::size_t kGroup = 8;  // leaves that are added in one go

HWY_INLINE Reals real(double x) { return hn::Set(Doubles(), x); }
HWY_INLINE hn::Vec<LongWords> bits(Reals x) { return hn::BitCast(LongWords(), x); }
HWY_INLINE hn::Vec<LongWords> word(std::uint64_t x) { return hn::Set(LongWords(), x); }

// Sums in double of a tile, and of absolute values.
struct Tile {
  alignas(64) double sums[kScanTile];
  alignas(64) double sizes[kScanTile];

  template <Dtype kDtype, std::size_t kCount>
  HWY_INLINE void add_leaves(const void* const* leaves, std::size_t first, std::size_t count,
                             bool begin) {
    constexpr std::size_t kBytes = element_bytes(kDtype);
    const std::uint8_t* from[kCount];
    for (std::size_t j = 0; j < kCount; ++j) {
      from[j] = static_cast<const std::uint8_t*>(leaves[j]) + first * kBytes;
    }
    const Doubles d;
    for (std::size_t i = 0; i < count; i += kLanes) {
      const std::size_t k = i + kDoubleLanes;
      auto low = begin ? hn::Zero(d) : hn::Load(d, sums + i);
      auto high = begin ? hn::Zero(d) : hn::Load(d, sums + k);
      auto low_size = begin ? hn::Zero(d) : hn::Load(d, sizes + i);
      auto high_size = begin ? hn::Zero(d) : hn::Load(d, sizes + k);
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

  // Whether no addition was rounded.
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

class Loop {
 public:
  HWY_INLINE Loop(const ScanPlan& plan, const Tile& sums, bool exact, ScannedTile& tile)
      : plan_(plan), sums_(sums), exact_(exact), tile_(tile) {}

  HWY_INLINE void load(const ScanSums& s) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      squared_errors_[v] = hn::Load(Doubles(), s.squared_errors.data() + v * kDoubleLanes);
      squared_sums_[v] = hn::Load(Doubles(), s.squared_sums.data() + v * kDoubleLanes);
      ratios_[v] = hn::Load(Doubles(), s.ratios.data() + v * kDoubleLanes);
      largest_[v] = hn::Load(Doubles(), s.largest_ratios.data() + v * kDoubleLanes);
    }
    counts_ = s.counts;
    beyond_ = hn::Zero(Integers());
  }

  HWY_INLINE void save(ScanSums& s) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      hn::Store(squared_errors_[v], Doubles(), s.squared_errors.data() + v * kDoubleLanes);
      hn::Store(squared_sums_[v], Doubles(), s.squared_sums.data() + v * kDoubleLanes);
      hn::Store(ratios_[v], Doubles(), s.ratios.data() + v * kDoubleLanes);
      hn::Store(largest_[v], Doubles(), s.largest_ratios.data() + v * kDoubleLanes);
    }
    s.counts = counts_;
    s.counts[0] += static_cast<std::uint64_t>(hn::GetLane(hn::SumOfLanes(Integers(), beyond_)));
  }

  // The elements from `at` on; `vector` is the place of their lanes.
  HWY_INLINE void add(Reals result, std::size_t at, std::size_t vector) {
    Elements e = elements(result, at);
    const Reals error = hn::Sub(hn::Mul(e.result, real(plan_.divisor)), e.sum);
    const Reals off = hn::Abs(error);
    squared_errors_[vector] = hn::Add(squared_errors_[vector], hn::Mul(error, error));
    squared_sums_[vector] = hn::Add(squared_sums_[vector], hn::Mul(e.sum, e.sum));
    const Reals ratio = hn::Div(off, hn::Max(e.size, real(0x1p-1000)));
    ratios_[vector] = hn::Add(ratios_[vector], ratio);
    largest_[vector] = hn::Max(largest_[vector], ratio);
    store_ulps(e, at);
    judge(e, off);
  }

 private:
  // Rounded to the dtype, ties to even. REQUIRES: normal there.
  HWY_INLINE Reals rounded(Reals x) const {
    const int shift = plan_.shift;
    const auto b = bits(x);
    const auto last = hn::And(hn::ShiftRightSame(b, shift), word(1));
    const auto half = word((std::uint64_t{1} << (shift - 1)) - 1);
    const auto up = hn::Add(b, hn::Add(half, last));
    return hn::BitCast(Doubles(), hn::And(up, word(~((std::uint64_t{1} << shift) - 1))));
  }

  HWY_INLINE Elements elements(Reals result, std::size_t at) {
    Elements e{result, hn::Load(Doubles(), sums_.sums + at), hn::Load(Doubles(), sums_.sizes + at),
               real(0), real(0)};
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
    if (!hn::AllTrue(Doubles(), sound)) leave(e, sound, at);
    return e;
  }

  // Zeros of all workers and in the result stay; other elements that are not sound become zeros.
  HWY_NOINLINE void leave(Elements& e, Mask sound, std::size_t at) {
    const Mask zero = hn::And(hn::Eq(e.size, real(0)), hn::Eq(e.result, real(0)));
    std::uint8_t left[8] = {};
    hn::StoreMaskBits(Doubles(), hn::Not(hn::Or(sound, zero)), left);
    for (unsigned set = left[0]; set != 0; set &= set - 1) {
      tile_.left[tile_.left_count++] =
          static_cast<std::uint16_t>(at + static_cast<std::size_t>(std::countr_zero(set)));
    }
    e.result = hn::IfThenElseZero(sound, e.result);
    e.sum = hn::IfThenElseZero(sound, e.sum);
    e.size = hn::IfThenElseZero(sound, e.size);
    e.mean = hn::IfThenElseZero(sound, e.mean);
    e.rounded = hn::IfThenElseZero(sound, e.rounded);
  }

  HWY_INLINE void store_ulps(const Elements& e, std::size_t at) {
    const Integers di;
    const auto a = hn::BitCast(di, hn::Abs(e.result));
    const auto b = hn::BitCast(di, hn::Abs(e.rounded));
    const auto distance = hn::BitCast(LongWords(), hn::Abs(hn::Sub(a, b)));
    hn::StoreU(hn::TruncateTo(Small(), hn::ShiftRightSame(distance, plan_.shift)), Small(),
               tile_.ulps.data() + at);
  }

  // The widest format's bound is the tightest.
  HWY_INLINE void judge(const Elements& e, Reals off) {
    const Reals size = hn::Max(hn::Abs(e.result), hn::Abs(e.mean));
    const Reals power =
        hn::BitCast(Doubles(), hn::And(bits(size), word(std::uint64_t{0x7FF} << 52)));
    const ScanPlan::Limit &a = plan_.limits[0], &b = plan_.limits[plan_.sieve];
    const Reals half = hn::Mul(power, real(a.half_ulp));
    const auto most = [&](const ScanPlan::Limit& limit) {
      return hn::Add(half, hn::Add(hn::Mul(e.size, real(limit.relative)), real(limit.tiny)));
    };
    beyond_ =
        hn::Sub(beyond_, hn::BitCast(Integers(), hn::VecFromMask(Doubles(), hn::Gt(off, most(a)))));
    if (!hn::AllFalse(Doubles(), hn::Gt(off, most(b)))) judge_others(e, off, size, power);
  }

  HWY_NOINLINE void judge_others(const Elements& e, Reals off, Reals size, Reals power) {
    const Reals usual = hn::Add(hn::Mul(e.size, real(plan_.usual_of_values)),
                                hn::Mul(hn::Abs(e.sum), real(plan_.usual_of_sum)));
    Mask far = hn::Gt(off, real(0));
    for (std::size_t f = 1; f < plan_.formats; ++f) {
      const ScanPlan::Limit& limit = plan_.limits[f];
      const Reals least = rounding(limit, e.result, size, power);
      const Reals most = hn::Mul(e.size, real(limit.relative));
      counts_[f] += hn::CountTrue(Doubles(), hn::Gt(off, hn::Add(least, most)));
      if (!limit.narrowest) continue;
      const Reals usually = hn::Min(most, hn::Mul(usual, real(limit.unit)));
      far = hn::And(far, hn::Gt(off, hn::Add(least, usually)));
    }
    counts_[plan_.formats] += hn::CountTrue(Doubles(), far);
  }

  HWY_INLINE Reals rounding(const ScanPlan::Limit& limit, Reals result, Reals size,
                            Reals power) const {
    const Reals fine = hn::Add(
        hn::Mul(hn::Max(power, real(limit.least_power)), real(limit.half_ulp)), real(limit.tiny));
    if (limit.own) return fine;
    return hn::IfThenElse(is_value(limit, result), fine, hn::Mul(size, real(limit.coarse)));
  }

  HWY_INLINE Mask is_value(const ScanPlan::Limit& limit, Reals x) const {
    const Reals size = hn::Abs(x);
    const auto rest = hn::And(bits(x), word(limit.behind));
    const Mask normal = hn::And(hn::RebindMask(Doubles(), hn::Eq(rest, word(0))),
                                hn::Le(size, real(limit.most_finite)));
    const Reals steps = hn::Mul(size, real(limit.least_spacing));
    const Mask small = hn::Eq(hn::Round(steps), steps);
    const Mask tiny = hn::Lt(size, real(limit.least_normal));
    return hn::Or(hn::And(tiny, small), hn::AndNot(tiny, normal));
  }

  const ScanPlan& plan_;
  const Tile& sums_;
  bool exact_;
  ScannedTile& tile_;
  Reals squared_errors_[kVectors], squared_sums_[kVectors], ratios_[kVectors], largest_[kVectors];
  std::array<std::uint64_t, 5> counts_;
  hn::Vec<Integers> beyond_;
};

template <Dtype kDtype>
HWY_INLINE void scan_of(const ScanPlan& plan, Pointers leaves, const void* result,
                        std::size_t first, std::size_t count, ScanSums& sums, ScannedTile& tile) {
  constexpr std::size_t kBytes = element_bytes(kDtype);
  Tile of_leaves;
  const bool exact = of_leaves.add_all<kDtype>(leaves, first, count) && plan.exact_quotient;
  const auto* from = static_cast<const std::uint8_t*>(result) + first * kBytes;
  Loop loop(plan, of_leaves, exact, tile);
  loop.load(sums);
  for (std::size_t i = 0; i < count; i += kScanLanes) {
    for (std::size_t v = 0; v < kVectors; v += 2) {
      const std::size_t at = i + v * kDoubleLanes;
      const Vectors values = read<kDtype>(from + at * kBytes);
      loop.add(values.low, at, v);
      loop.add(values.high, at + kDoubleLanes, v + 1);
    }
  }
  loop.save(sums);
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

#endif

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace
}  // namespace presum::audit
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace presum::audit {
namespace {

HWY_EXPORT(scan_vectors);

}  // namespace

void scan_tile(const ScanPlan& plan, std::span<const void* const> leaves, const void* result,
               std::size_t first, std::size_t count, ScanSums& sums, ScannedTile& tile) {
  tile.left_count = 0;
  PRESUM_SIMD_DISPATCH(scan_vectors)(plan, leaves, result, first, count, sums, tile);
}

}  // namespace presum::audit

#endif  // HWY_ONCE
