// SPDX-License-Identifier: Apache-2.0
//
// The baseline of sums: W buffers added in fp32, eight at a time, with every vector instruction
// that the target has. Included like base/vectors-inl.h.
#if defined(PRESUM_BENCH_PLAIN_SUM_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef PRESUM_BENCH_PLAIN_SUM_INL_H
#undef PRESUM_BENCH_PLAIN_SUM_INL_H
#else
#define PRESUM_BENCH_PLAIN_SUM_INL_H
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace presum::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using Words = hn::Repartition<std::uint32_t, Floats>;

HWY_INLINE hn::Vec<Floats> read(const float* from) { return hn::LoadU(Floats(), from); }

#if HWY_TARGET != HWY_SCALAR
HWY_INLINE hn::Vec<Floats> read(const std::uint16_t* from) {
  const auto shorts = hn::LoadU(hn::Rebind<std::uint16_t, Floats>(), from);
  return hn::BitCast(Floats(), hn::ShiftLeft<16>(hn::PromoteTo(Words(), shorts)));
}
#else
HWY_INLINE hn::Vec<Floats> read(const std::uint16_t* from) {
  return hn::BitCast(Floats(), hn::Set(Words(), static_cast<std::uint32_t>(*from) << 16));
}
#endif

// T: float, or bf16 as its bits. REQUIRES: a tile that divides the count, and that the widest
// vector divides; a multiple of 8 leaves.
template <class T>
HWY_INLINE void plain_sum(const void* const* leaves, std::size_t leaf_count, std::size_t count,
                          std::size_t tile, std::size_t prefetch_bytes, float* out) {
  constexpr std::size_t kGroup = 8, kLanes = hn::MaxLanes(Floats());
  for (std::size_t first = 0; first < count; first += tile) {
    for (std::size_t leaf = 0; leaf < leaf_count; leaf += kGroup) {
      const T* from[kGroup];
      for (std::size_t j = 0; j < kGroup; ++j) {
        from[j] = static_cast<const T*>(leaves[leaf + j]) + first;
      }
      for (std::size_t i = 0; i < tile; i += kLanes) {
        auto sum = leaf == 0 ? hn::Zero(Floats()) : hn::LoadU(Floats(), out + first + i);
        for (std::size_t j = 0; prefetch_bytes > 0 && j < kGroup; ++j) {
          const auto ahead = reinterpret_cast<std::uintptr_t>(from[j] + i) + prefetch_bytes;
          __builtin_prefetch(reinterpret_cast<const void*>(ahead), 0, 2);
        }
        for (std::size_t j = 0; j < kGroup; ++j) sum = hn::Add(sum, read(from[j] + i));
        hn::StoreU(sum, Floats(), out + first + i);
      }
    }
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace presum::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // PRESUM_BENCH_PLAIN_SUM_INL_H
