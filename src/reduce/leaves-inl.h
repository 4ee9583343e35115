// SPDX-License-Identifier: Apache-2.0
//
// The walk over leaves that all kernels share; included like base/vectors-inl.h.
#if defined(PRESUM_REDUCE_LEAVES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef PRESUM_REDUCE_LEAVES_INL_H
#undef PRESUM_REDUCE_LEAVES_INL_H
#else
#define PRESUM_REDUCE_LEAVES_INL_H
#endif

#include "base/vectors-inl.h"
#include "presum/reduce.h"
#include "reduce/tile.h"

HWY_BEFORE_NAMESPACE();
namespace presum::reduce::HWY_NAMESPACE {

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

using namespace base::HWY_NAMESPACE;

using LongInts = hn::RebindToSigned<LongWords>;
using Ints = hn::RebindToSigned<Words>;
using HalfInts = hn::Rebind<std::int32_t, Doubles>;
using HalfWords = hn::Rebind<std::uint32_t, Doubles>;
using Bits = hn::Vec<Words>;
using Reals = hn::Vec<Doubles>;

HWY_INLINE Bits word(std::uint32_t value) { return hn::Set(Words(), value); }
HWY_INLINE Reals real(double value) { return hn::Set(Doubles(), value); }

// Of the element without its sign, which orders elements by size.
HWY_INLINE Bits size_bits(hn::Vec<Floats> floats) {
  return hn::And(hn::BitCast(Words(), floats), word(0x7FFFFFFF));
}

HWY_INLINE Bits exponent_of(Bits size) { return hn::ShiftRight<23>(size); }

// Which doubles a mask of floats means.
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

template <Dtype kDtype>
HWY_INLINE const std::uint8_t* element(const void* buffer, std::size_t i) {
  return static_cast<const std::uint8_t*>(buffer) + i * element_bytes(kDtype);
}

// Into the second cache: the first takes up fewer requests at a time than memory serves.
HWY_INLINE void prefetch(const std::uint8_t* from) {
  const auto ahead = reinterpret_cast<std::uintptr_t>(from) + kPrefetchBytes;
  __builtin_prefetch(reinterpret_cast<const std::uint8_t*>(ahead), 0, 2);
}

// A tile has begin, load and save for the sums of kLanes elements.
template <Dtype kDtype, std::size_t kGroup, class Tile>
HWY_INLINE void add_group(Leaves leaves, std::size_t leaf, std::size_t first, std::size_t size,
                          Tile& tile) {
  const std::uint8_t* from[kGroup];
  for (std::size_t j = 0; j < kGroup; ++j) from[j] = element<kDtype>(leaves[leaf + j], first);
  for (std::size_t i = 0; i < size; i += kLanes) {
    const std::size_t at = i * element_bytes(kDtype);
    auto sum = leaf == 0 ? tile.begin(i) : tile.load(i);
    for (std::size_t j = 0; j < kGroup; ++j) prefetch(from[j] + at);
    for (std::size_t j = 0; j < kGroup; ++j) sum.add(read<kDtype>(from[j] + at));
    tile.save(i, sum);
  }
}

// Adds elements first to first + size of all leaves to the tile, in groups of which the sums stay
// in registers. REQUIRES: size is a multiple of kLanes and at most kTile.
template <Dtype kDtype, class Tile>
HWY_INLINE void add_leaves(Leaves leaves, std::size_t first, std::size_t size, Tile& tile) {
  std::size_t leaf = 0;
  for (; leaf + 8 <= leaves.size(); leaf += 8)
    add_group<kDtype, 8, Tile>(leaves, leaf, first, size, tile);
  for (; leaf + 2 <= leaves.size(); leaf += 2)
    add_group<kDtype, 2, Tile>(leaves, leaf, first, size, tile);
  if (leaf < leaves.size()) add_group<kDtype, 1, Tile>(leaves, leaf, first, size, tile);
}

#endif

}  // namespace presum::reduce::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
