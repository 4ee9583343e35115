// SPDX-License-Identifier: Apache-2.0
#include "reduce/exact.h"

#include <algorithm>

#include "base/float_environment.h"
#include "base/simd_dispatch.h"
#include "reduce/long_sum.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "reduce/exact.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h:
#include "hwy/highway.h"
#include "reduce/rounding-inl.h"

#ifndef PRESUM_REDUCE_EXACT_ONCE
#define PRESUM_REDUCE_EXACT_ONCE

namespace presum::reduce {
namespace {

// How far apart the exponents of an element's leaves may be. The spread is the difference between
// the largest and smallest exponent of the nonzero leaves; L = ceil(log2(leaves)); a leaf has M
// bits. All partial sums are multiples of 2^(smallest - M + 1) and at most 2^(largest + L + 1).
struct Limits {
  int one;   // one double holds every partial sum: spread + M + L <= 53
  int pair;  // two doubles do: see sum_in_pairs
};

// Distance by which a leaf is prefetched ahead of its reading.
constexpr std::size_t kPrefetchBytes = 4096;

// With few leaves a tile is small, so that its results are rounded while the next tile is fetched.
// With many leaves, long stretches of each leaf are fetched more efficiently.
constexpr std::size_t tile_of(std::size_t leaves) { return leaves <= 8 ? 128 : kTile; }

// Number of elements of eight bf16 leaves for which all sums are usually exact in fp32.
constexpr std::size_t kBlock = 256;

// Tiles that are summed in pairs before the exponents are examined again.
constexpr int kBlindTiles = 32;

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

using namespace reduce::HWY_NAMESPACE;

using HalfInts = hn::Rebind<std::int32_t, Doubles>;
using HalfWords = hn::Rebind<std::uint32_t, Doubles>;
using Bits = hn::Vec<Words>;

HWY_INLINE Bits word(std::uint32_t value) { return hn::Set(Words(), value); }

// The bits of the element without its sign; they order elements by magnitude.
HWY_INLINE Bits size_bits(hn::Vec<Floats> floats) {
  return hn::And(hn::BitCast(Words(), floats), word(0x7FFFFFFF));
}

HWY_INLINE Bits exponent_of(Bits size) { return hn::ShiftRight<23>(size); }

// The masks of doubles that correspond to a mask of floats.
struct Masks {
  hn::Mask<Doubles> low, high;
};
HWY_INLINE Masks widen(hn::Mask<Words> mask) {
  const auto ints = hn::BitCast(Ints(), hn::VecFromMask(Words(), mask));
  const auto low = hn::PromoteTo(LongInts(), hn::LowerHalf(HalfInts(), ints));
  const auto high = hn::PromoteTo(LongInts(), hn::UpperHalf(HalfInts(), ints));
  return {hn::MaskFromVec(hn::BitCast(Doubles(), low)),
          hn::MaskFromVec(hn::BitCast(Doubles(), high))};
}

// A Tile has begin, load and save for the sums of kLanes elements.
template <Dtype kDtype, std::size_t kGroup, class Tile>
HWY_INLINE void add_group(Leaves leaves, std::size_t leaf, std::size_t first, std::size_t size,
                          Tile& tile) {
  const std::uint8_t* from[kGroup];
  for (std::size_t j = 0; j < kGroup; ++j) from[j] = element<kDtype>(leaves[leaf + j], first);
  for (std::size_t i = 0; i < size; i += kLanes) {
    const std::size_t at = i * element_bytes(kDtype);
    auto sum = leaf == 0 ? tile.begin(i) : tile.load(i);
    for (std::size_t j = 0; j < kGroup; ++j) prefetch(from[j] + at, kPrefetchBytes);
    for (std::size_t j = 0; j < kGroup; ++j) sum.add(read<kDtype>(from[j] + at));
    tile.save(i, sum);
  }
}

// Adds elements first to first + size - 1 of all leaves to the tile, in groups whose sums stay in
// registers. REQUIRES: size is a multiple of kLanes and at most kTile.
template <Dtype kDtype, class Tile>
HWY_INLINE void add_leaves(Leaves leaves, std::size_t first, std::size_t size, Tile& tile) {
  std::size_t leaf = 0;
  for (; leaf + 8 <= leaves.size(); leaf += 8)
    add_group<kDtype, 8, Tile>(leaves, leaf, first, size, tile);
  for (; leaf + 2 <= leaves.size(); leaf += 2)
    add_group<kDtype, 2, Tile>(leaves, leaf, first, size, tile);
  if (leaf < leaves.size()) add_group<kDtype, 1, Tile>(leaves, leaf, first, size, tile);
}

#if HWY_NATIVE_FMA
// a + b in the multiplication units, where the addition units are the bottleneck.
HWY_INLINE Reals sum_elsewhere(Reals a, Reals b) { return hn::MulAdd(a, real(1), b); }
HWY_INLINE Reals difference_elsewhere(Reals a, Reals b) { return hn::NegMulAdd(b, real(1), a); }
#else
HWY_INLINE Reals sum_elsewhere(Reals a, Reals b) { return hn::Add(a, b); }
HWY_INLINE Reals difference_elsewhere(Reals a, Reals b) { return hn::Sub(a, b); }
#endif

// The same, without the processor's report that the result was rounded.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
constexpr bool kSilentSums = true;
HWY_INLINE Reals silent_sum(Reals a, Reals b) {
  return Reals{_mm512_fmadd_round_pd(a.raw, real(1).raw, b.raw,
                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
#else
constexpr bool kSilentSums = false;
HWY_INLINE Reals silent_sum(Reals a, Reals b) { return sum_elsewhere(a, b); }
#endif

// A sum in double.
struct PlainSum {
  Sums sums;

  HWY_INLINE void add(const Vectors& v) {
    sums = {hn::Add(sums.low, v.low), sum_elsewhere(v.high, sums.high)};
  }
};

struct PlainTile {
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

// A part of a tile to which other leaves may have been added before.
struct PartOfTile {
  HWY_INLINE PlainSum begin(std::size_t i) const {
    return begun ? tile.load(first + i) : tile.begin(first + i);
  }
  HWY_INLINE PlainSum load(std::size_t i) const { return tile.load(first + i); }
  HWY_INLINE void save(std::size_t i, const PlainSum& sum) { tile.save(first + i, sum); }

  PlainTile& tile;
  std::size_t first;
  bool begun;
};

struct Sizes {
  Bits largest;   // largest of the leaves' bits without their sign
  Bits smallest;  // smallest of these minus one, so that zeros do not count

  HWY_INLINE void add(const Vectors& v) {
    const auto size = size_bits(v.floats);
    largest = hn::Max(largest, size);
    smallest = hn::Min(smallest, hn::Sub(size, word(1)));
  }
};

struct SizesTile {
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

// A sum in two doubles, both exact. The first is anchored: it starts with a number larger than all
// partial sums, so that it is never smaller than an addend.
struct PairSum {
  Sums sum, rest;

  HWY_INLINE void add(const Vectors& v) {
    add(sum.low, rest.low, v.low);
    add(sum.high, rest.high, v.high);
  }

  // If the processor reports no rounding in the other three operations, both are exact even if the
  // first was smaller.
  static HWY_INLINE void add(Reals& sum, Reals& rest, Reals x) {
    const auto before = sum;
    sum = silent_sum(x, before);
    rest = hn::Add(rest, difference_elsewhere(x, hn::Sub(sum, before)));
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
  // For 2^bits leaves.
  HWY_INLINE explicit PairTile(int bits) : bits_(bits) {}

  // Sets the anchors from the sizes of each element's leaves, or from one exponent for all.
  void anchor_by(const SizesTile& sizes) { sizes_ = &sizes; }
  void anchor_by(std::uint32_t exponent) {
    sizes_ = nullptr;
    exponent_ = exponent;
  }

  HWY_INLINE PairSum begin(std::size_t i) const { return {anchor(i), {real(0), real(0)}}; }
  HWY_INLINE PairSum load(std::size_t i) const { return {sums_.load(i).sums, rests_.load(i).sums}; }
  HWY_INLINE void save(std::size_t i, const PairSum& pair) {
    sums_.save(i, {pair.sum});
    rests_.save(i, {pair.rest});
  }

  // Removes the anchors. Call it last, and once.
  HWY_INLINE void weigh_anchors(std::size_t size) {
    for (std::size_t i = 0; i < size; i += kLanes) {
      const Sums from = anchor(i), sum = sums_.load(i).sums;
      sums_.save(i, {{hn::Sub(sum.low, from.low), hn::Sub(sum.high, from.high)}});
    }
  }

 private:
  HWY_INLINE Sums anchor(std::size_t i) const {
    if (sizes_ == nullptr) return anchors(word(exponent_), bits_);
    const auto exponent = exponent_of(sizes_->load(i).largest);
    return anchors(hn::Max(exponent, word(1)), bits_);
  }

  int bits_;
  const SizesTile* sizes_ = nullptr;
  std::uint32_t exponent_ = 0;
  PlainTile sums_, rests_;
};

// Exponent of the smallest nonzero leaf; denormals have the exponent 1.
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

// Elements with an infinity or NaN among the leaves.
HWY_INLINE hn::Mask<Words> special(const Sizes& sizes) {
  return hn::Eq(exponent_of(sizes.largest), word(255));
}

HWY_INLINE bool any(hn::Mask<Words> mask) { return !hn::AllFalse(Words(), mask); }

// Ties of fp32, among its normal numbers.
HWY_INLINE hn::Mask<Doubles> tie(Reals x) {
  const auto below = hn::Set(LongWords(), (std::uint64_t{1} << 29) - 1);
  const auto half = hn::Set(LongWords(), std::uint64_t{1} << 28);
  return hn::RebindMask(Doubles(), hn::Eq(hn::And(long_words(x), below), half));
}

HWY_INLINE bool any_tie(const Sums& x) {
  return !hn::AllFalse(Doubles(), hn::Or(tie(x.low), tie(x.high)));
}

HWY_INLINE Reals odd(Reals sum, Reals rest) {
  const Pair pair = two_sum(sum, rest);
  return to_odd(pair.sum, pair.rest);
}

HWY_INLINE Sums odd(const PairSum& p) {
  return {odd(p.sum.low, p.rest.low), odd(p.sum.high, p.rest.high)};
}

// ---- bf16 in floats

// Reads two vectors of each leaf at a time; `sums` keeps the low and high halves of the words
// apart. REQUIRES: size is a multiple of 2 * kLanes.
template <std::size_t kGroup>
HWY_INLINE void sum_bf16_group(Leaves leaves, std::size_t first, std::size_t size, float* sums) {
  const Floats d;
  const std::uint8_t* from[kGroup];
  for (std::size_t j = 0; j < kGroup; ++j) from[j] = element<Dtype::kBF16>(leaves[j], first);
  for (std::size_t i = 0; i < size; i += 2 * kLanes) {
    auto low = hn::Zero(d), high = hn::Zero(d);
    for (std::size_t j = 0; j < kGroup; ++j) prefetch(from[j] + 2 * i, kPrefetchBytes);
    for (std::size_t j = 0; j < kGroup; ++j) {
      const auto words = load(Words(), from[j] + 2 * i);
      low = hn::Add(low, hn::BitCast(d, hn::ShiftLeft<16>(words)));
      high = hn::Add(high, hn::BitCast(d, hn::And(words, word(0xFFFF0000))));
    }
    hn::Store(low, d, sums + i);
    hn::Store(high, d, sums + i + kLanes);
  }
}

HWY_INLINE std::size_t bf16_group(std::size_t leaves) {
  return std::min(std::size_t{8}, std::bit_floor(leaves));
}

// REQUIRES: leaves.size() is a result of bf16_group.
HWY_INLINE void sum_bf16(Leaves leaves, std::size_t first, std::size_t size, float* sums) {
  switch (leaves.size()) {
    case 8:
      return sum_bf16_group<8>(leaves, first, size, sums);
    case 4:
      return sum_bf16_group<4>(leaves, first, size, sums);
    case 2:
      return sum_bf16_group<2>(leaves, first, size, sums);
    default:
      return sum_bf16_group<1>(leaves, first, size, sums);
  }
}

// Rounds to the nearest bf16, with its bits in the upper half. Adds just under half a unit, or
// exactly half a unit if the last bit is odd; a carry increments the exponent, up to infinity.
HWY_INLINE Bits to_bf16(hn::Vec<Floats> x) {
  const auto bits = hn::BitCast(Words(), x);
  const auto last = hn::And(hn::ShiftRight<16>(bits), word(1));
  const auto rounded = hn::Add(hn::Add(bits, word(0x7FFF)), last);
  return hn::IfThenElse(hn::RebindMask(Words(), hn::IsNaN(x)), word(0x7FC00000), rounded);
}

HWY_INLINE void put_bf16(const float* sums, std::size_t size, std::uint8_t* to) {
  for (std::size_t i = 0; i < size; i += 2 * kLanes) {
    const auto low = hn::ShiftRight<16>(to_bf16(hn::Load(Floats(), sums + i)));
    const auto high = to_bf16(hn::Load(Floats(), sums + i + kLanes));
    store(hn::Or(low, hn::And(high, word(0xFFFF0000))), to + 2 * i);
  }
}

// Decides whether to try sums in fp32: not if they have failed too often recently.
class Confidence {
 public:
  bool tries() {
    if (misses_ < kMost) return true;
    --misses_;
    return false;
  }
  void learn(bool exact) { misses_ = exact ? std::max(misses_ - 1, 0) : misses_ + 4; }

 private:
  static constexpr int kMost = 8;
  int misses_ = 0;
};

template <Dtype kDtype>
class Exact {
 public:
  HWY_INLINE Exact(Leaves leaves, std::uint32_t divisor, std::uint8_t* out)
      : leaves_(leaves),
        limits_(limits_of(kDtype, leaves.size())),
        divisor_(divisor),
        divide_(divisor),
        out_(out),
        pairs_(leaf_bits(leaves.size())) {}

  // REQUIRES: count is a multiple of kLanes.
  HWY_INLINE void run(std::size_t count) {
    const std::size_t tile = tile_of(leaves_.size());
    for (std::size_t first = 0; first < count; first += tile) {
      sum_tile(first, std::min(tile, count - first));
    }
  }

 private:
  static constexpr std::size_t kBytes = element_bytes(kDtype);

  // Usually no addition in a tile is rounded. The processor's flags are the cheapest proof of that.
  // If the previous tile needed more, trying is pointless.
  HWY_INLINE void sum_tile(std::size_t first, std::size_t size) {
    if (!base::inexact_is_reported()) {
      sum_by_sizes(first, size, false);
    } else if (!narrow_) {
      if (blind_tiles_ == 0 || !try_in_pairs(first, size)) sum_by_sizes(first, size, false);
    } else if (kDtype == Dtype::kBF16 && size % (2 * kLanes) == 0) {
      if (!try_in_floats(first, size)) sum_by_sizes(first, size, false);
    } else if (!try_plainly(first, size)) {
      sum_by_sizes(first, size, true);
    }
  }

  HWY_INLINE bool try_plainly(std::size_t first, std::size_t size) {
    base::clear_inexact();
    add_leaves<kDtype>(leaves_, first, size, plain_);
    if (base::inexact(&plain_)) return false;
    put_exact_sums(first, size);
    return true;
  }

  // Sums eight leaves at a time in fp32 if that is exact.
  HWY_INLINE bool try_in_floats(std::size_t first, std::size_t size) {
    for (std::size_t leaf = 0, group = 0; leaf < leaves_.size(); leaf += group) {
      group = bf16_group(leaves_.size() - leaf);
      const Leaves some = leaves_.subspan(leaf, group);
      for (std::size_t i = 0; i < size; i += kBlock) {
        const std::size_t block = std::min(kBlock, size - i);
        const bool exact = try_block(some, first + i, block);
        if (exact && only_floats(size)) {
          put_bf16(floats_, size, out_ + first * kBytes);
          return true;
        }
        if (!add_block(some, exact, first, i, block, leaf > 0)) return false;
      }
    }
    put_exact_sums(first, size);
    return true;
  }

  HWY_INLINE bool only_floats(std::size_t size) const {
    return bf16_group(leaves_.size()) == leaves_.size() && size <= kBlock && divisor_ == 1;
  }

  HWY_INLINE bool try_block(Leaves some, std::size_t first, std::size_t size) {
    if (!confidence_.tries()) return false;
    base::clear_inexact();
    sum_bf16(some, first, size, floats_);
    const bool exact = !base::inexact(floats_);
    confidence_.learn(exact);
    return exact;
  }

  // Adds leaves, or their exact sums in floats_, to a part of the tile.
  HWY_INLINE bool add_block(Leaves some, bool exact, std::size_t first, std::size_t i,
                            std::size_t size, bool begun) {
    PartOfTile part{plain_, i, begun};
    base::clear_inexact();
    if (exact) {
      add_floats(part, size);
    } else {
      add_leaves<kDtype>(some, first + i, size, part);
    }
    return !base::inexact(&plain_);
  }

  HWY_INLINE void add_floats(PartOfTile& part, std::size_t size) {
    const Floats d;
    for (std::size_t i = 0; i < size; i += 2 * kLanes) {
      hn::StoreInterleaved2(hn::Load(d, floats_ + i), hn::Load(d, floats_ + i + kLanes), d,
                            floats_ + i);
    }
    for (std::size_t i = 0; i < size; i += kLanes) {
      PlainSum sum = part.begin(i);
      sum.add(read<Dtype::kF32>(reinterpret_cast<const std::uint8_t*>(floats_ + i)));
      part.save(i, sum);
    }
  }

  HWY_INLINE void put_exact_sums(std::size_t first, std::size_t size) const {
    for (std::size_t i = 0; i < size; i += kLanes) put(plain_.load(i).sums, first + i);
  }

  // Sums in pairs, assuming that the leaves are like those of an earlier tile.
  HWY_NOINLINE bool try_in_pairs(std::size_t first, std::size_t size) {
    --blind_tiles_;
    pairs_.anchor_by(blind_exponent_);
    base::clear_inexact();
    add_leaves<kDtype>(leaves_, first, size, pairs_);
    pairs_.weigh_anchors(size);
    if (base::inexact(&pairs_)) {
      blind_tiles_ = 0;
      return false;
    }
    for (std::size_t i = 0; i < size; i += kLanes) put_pair(pairs_.load(i), first + i);
    return true;
  }

  // `summed`: the tile already holds the plain sums, exact or not.
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
    if (!summed) add_leaves<kDtype>(leaves_, first, size, plain_);
    put_plain_sums(first, size);
  }

  HWY_INLINE void put_plain_sums(std::size_t first, std::size_t size) {
    for (std::size_t i = 0; i < size; i += kLanes) {
      const Sizes sizes = sizes_.load(i);
      // Infinities and NaNs need no special case: the plain sum already is the required result.
      if (any(hn::AndNot(special(sizes), wider(sizes, limits_.one)))) {
        sum_in_windows(sizes, first + i);
      } else {
        put(plain_.load(i).sums, first + i);
      }
    }
  }

  HWY_INLINE void sum_in_pairs(std::size_t first, std::size_t size) {
    pairs_.anchor_by(sizes_);
    add_leaves<kDtype>(leaves_, first, size, pairs_);
    pairs_.weigh_anchors(size);
    Sizes all = sizes_.begin(0);
    for (std::size_t i = 0; i < size; i += kLanes) {
      const Sizes sizes = sizes_.load(i);
      all.largest = hn::Max(all.largest, sizes.largest);
      all.smallest = hn::Min(all.smallest, sizes.smallest);
      if (any(hn::Or(special(sizes), wider(sizes, limits_.pair)))) {
        sum_in_windows(sizes, first + i);
      } else {
        put_pair(pairs_.load(i), first + i);
      }
    }
    expect(all);
  }

  // Assumes that the leaves of the next tiles are within a factor of 4 of this tile's.
  HWY_INLINE void expect(const Sizes& all) {
    const auto largest = exponent_of(hn::MaxOfLanes(Words(), all.largest));
    const auto smallest = hn::MinOfLanes(Words(), all.smallest);
    const bool close = !any(wider({hn::MaxOfLanes(Words(), all.largest), smallest},
                                  limits_.pair - leaf_bits(leaves_.size()) - 4));
    blind_exponent_ = hn::GetLane(largest) + 2;
    blind_tiles_ = kSilentSums && close && blind_exponent_ < 255 ? kBlindTiles : 0;
  }

  HWY_INLINE void put(Sums sums, std::size_t i) const {
    store_rounded<kDtype>({divide_(sums.low), divide_(sums.high)}, out_ + i * kBytes);
  }

  // Rounding the sum to a double first gives a wrong result only if that double is a tie of fp32;
  // below fp32's normal numbers, the sum is exact.
  HWY_INLINE void put_pair(const PairSum& p, std::size_t i) const {
    if (kDtype == Dtype::kF32 && divisor_ == 1) {
      const Sums sums{hn::Add(p.sum.low, p.rest.low), hn::Add(p.sum.high, p.rest.high)};
      if (!any_tie(sums)) return store_rounded<kDtype>(sums, out_ + i * kBytes);
    }
    put(odd(p), i);
  }

  // Sums the leaves near the largest and all others separately. Usually the others are near each
  // other too, for example if they are denormals; both sums are then exact. Elements that are still
  // too wide are summed one by one.
  HWY_NOINLINE void sum_in_windows(const Sizes& sizes, std::size_t i) const {
    const auto largest = hn::BitCast(Ints(), exponent_of(sizes.largest));
    const auto least = hn::Max(largest, hn::Set(Ints(), limits_.one + 1));
    const auto bound =
        hn::ShiftLeft<23>(hn::BitCast(Words(), hn::Sub(least, hn::Set(Ints(), limits_.one))));
    PairSum p{{real(0), real(0)}, {real(0), real(0)}};
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

  // Computes the chosen elements with the reference before writing any, because `out` may be one of
  // the leaves.
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
  bool narrow_ = true;   // the state of the previous tile
  int blind_tiles_ = 0;  // how many may follow
  std::uint32_t blind_exponent_ = 0;
  Confidence confidence_;
  PlainTile plain_;
  SizesTile sizes_;
  PairTile pairs_;
  alignas(64) float floats_[kBlock];
};

template <Dtype kDtype>
void exact_of(Leaves leaves, std::size_t count, std::uint32_t divisor, void* out) {
  std::size_t in_vectors = 0;
  if constexpr (kDtype != Dtype::kF64) {
    in_vectors = count / kLanes * kLanes;
    Exact<kDtype>(leaves, divisor, static_cast<std::uint8_t*>(out)).run(in_vectors);
  }
  exact_reference(leaves, kDtype, in_vectors, count - in_vectors, divisor, out);
}

void exact_vectors(Leaves leaves, Dtype dtype, std::size_t count, std::uint32_t divisor,
                   void* out) {
  PRESUM_RETURN_BY_DTYPE(dtype, exact_of, leaves, count, divisor, out)
}

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

std::uint64_t exact_sum(Leaves leaves, Dtype dtype, std::size_t i, std::uint32_t divisor) {
  LongSum sum;
  Specials specials;
  for (const void* leaf : leaves) {
    const Element e = element_at(leaf, i, dtype);
    specials.add(e);
    sum.add(e.negative, e.mantissa, e.shift);
  }
  const Format format = format_of(dtype);
  return specials.any() ? specials.bits(format) : sum.round(divisor, format.unit(), format);
}

void exact_reference(Leaves leaves, Dtype dtype, std::size_t first, std::size_t count,
                     std::uint32_t divisor, void* out) {
  for (std::size_t i = first; i < first + count; ++i) {
    set_element_bits(out, i, dtype, exact_sum(leaves, dtype, i, divisor));
  }
}

void exact_kernel(Leaves leaves, Dtype dtype, std::size_t count, std::uint32_t divisor, void* out) {
  const base::DefaultFloatEnvironment environment;
  if (divisor > kKernelDivisorMax) return exact_reference(leaves, dtype, 0, count, divisor, out);
  PRESUM_SIMD_DISPATCH(exact_vectors)(leaves, dtype, count, divisor, out);
}

}  // namespace presum::reduce

#endif  // HWY_ONCE
