// SPDX-License-Identifier: Apache-2.0
//
// The baseline of sums: W buffers added in fp32, eight at a time, with every vector instruction
// that the target has. Included like base/vectors-inl.h.
#ifndef PRESUM_BENCH_PLAIN_SUM_ONCE
#define PRESUM_BENCH_PLAIN_SUM_ONCE

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/simd_dispatch.h"
#include "presum/dtype.h"
#include "timing.h"

namespace presum {

using Leaves = std::vector<const void*>;

// How the baseline goes through its buffers.
struct Traversal {
  std::size_t tile, prefetch_bytes;
};

}  // namespace presum

#endif  // PRESUM_BENCH_PLAIN_SUM_ONCE

#if defined(PRESUM_BENCH_PLAIN_SUM_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef PRESUM_BENCH_PLAIN_SUM_INL_H
#undef PRESUM_BENCH_PLAIN_SUM_INL_H
#else
#define PRESUM_BENCH_PLAIN_SUM_INL_H
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace presum {
namespace {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using Words = hn::Repartition<std::uint32_t, Floats>;

constexpr std::size_t kLanes = hn::MaxLanes(Floats());

HWY_INLINE hn::Vec<Floats> read(const float* from) { return hn::LoadU(Floats(), from); }

HWY_INLINE void prefetch(const void* from, std::size_t ahead_bytes) {
  const auto ahead = reinterpret_cast<std::uintptr_t>(from) + ahead_bytes;
  __builtin_prefetch(reinterpret_cast<const void*>(ahead), 0, 2);
}

template <std::size_t kGroup>
HWY_INLINE void add_group(const void* const* leaves, std::size_t first, std::size_t size,
                          bool begin, std::size_t prefetch_bytes, float* sums) {
  const float* from[kGroup];
  for (std::size_t j = 0; j < kGroup; ++j) from[j] = static_cast<const float*>(leaves[j]) + first;
  for (std::size_t i = 0; i < size; i += kLanes) {
    auto sum = begin ? hn::Zero(Floats()) : hn::LoadU(Floats(), sums + i);
    for (std::size_t j = 0; prefetch_bytes > 0 && j < kGroup; ++j) {
      prefetch(from[j] + i, prefetch_bytes);
    }
    for (std::size_t j = 0; j < kGroup; ++j) sum = hn::Add(sum, read(from[j] + i));
    hn::StoreU(sum, Floats(), sums + i);
  }
}

// Where a group of leaves stands among all.
struct Place {
  bool begin, end;
};

HWY_INLINE hn::Vec<Words> to_bf16(hn::Vec<Floats> x) {
  const auto bits = hn::BitCast(Words(), x);
  const auto last = hn::And(hn::ShiftRight<16>(bits), hn::Set(Words(), 1));
  return hn::Add(hn::Add(bits, hn::Set(Words(), 0x7FFF)), last);
}

// Sums of bf16 in fp32, two vectors at a time, the halves of words apart; the last group rounds
// them to bf16.
template <std::size_t kGroup>
HWY_INLINE void add_bf16_group(const void* const* leaves, std::size_t first, std::size_t size,
                               Place place, std::size_t prefetch_bytes, float* sums,
                               std::uint32_t* out) {
  const Floats d;
  const auto upper = hn::Set(Words(), 0xFFFF0000);
  const std::uint32_t* from[kGroup];
  for (std::size_t j = 0; j < kGroup; ++j) {
    from[j] = static_cast<const std::uint32_t*>(leaves[j]) + first / 2;
  }
  for (std::size_t i = 0; i < size / 2; i += kLanes) {
    auto low = place.begin ? hn::Zero(d) : hn::LoadU(d, sums + 2 * i);
    auto high = place.begin ? hn::Zero(d) : hn::LoadU(d, sums + 2 * i + kLanes);
    for (std::size_t j = 0; prefetch_bytes > 0 && j < kGroup; ++j) {
      prefetch(from[j] + i, prefetch_bytes);
    }
    for (std::size_t j = 0; j < kGroup; ++j) {
      const auto words = hn::LoadU(Words(), from[j] + i);
      low = hn::Add(low, hn::BitCast(d, hn::ShiftLeft<16>(words)));
      high = hn::Add(high, hn::BitCast(d, hn::And(words, upper)));
    }
    if (place.end) {
      const auto rounded = hn::Or(hn::ShiftRight<16>(to_bf16(low)), hn::And(to_bf16(high), upper));
      hn::StoreU(rounded, Words(), out + i);
    } else {
      hn::StoreU(low, d, sums + 2 * i);
      hn::StoreU(high, d, sums + 2 * i + kLanes);
    }
  }
}

// The baseline: sums in fp32, eight buffers at a time, tile by tile. The count is a multiple of the
// tile, the tile of 64, the number of leaves of 8.
HWY_INLINE void plain_sum(const Leaves& leaves, std::size_t count, const Traversal& traversal,
                          float* out) {
  for (std::size_t first = 0; first < count; first += traversal.tile) {
    for (std::size_t leaf = 0; leaf < leaves.size(); leaf += 8) {
      add_group<8>(leaves.data() + leaf, first, traversal.tile, leaf == 0, traversal.prefetch_bytes,
                   out + first);
    }
  }
}

// The same for bf16; `sums` has room for a tile.
HWY_INLINE void plain_bf16_sum(const Leaves& leaves, std::size_t count, const Traversal& traversal,
                               float* sums, std::uint32_t* out) {
  for (std::size_t first = 0; first < count; first += traversal.tile) {
    for (std::size_t leaf = 0; leaf < leaves.size(); leaf += 8) {
      const Place place{leaf == 0, leaf + 8 == leaves.size()};
      add_bf16_group<8>(leaves.data() + leaf, first, traversal.tile, place,
                        traversal.prefetch_bytes, sums, out + first / 2);
    }
  }
}

void plain_sum_of(const Leaves& leaves, bool bf16, std::size_t count, const Traversal& traversal,
                  float* sums, void* out) {
  if (bf16) {
    plain_bf16_sum(leaves, count, traversal, sums, static_cast<std::uint32_t*>(out));
  } else {
    plain_sum(leaves, count, traversal, static_cast<float*>(out));
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace
}  // namespace presum
HWY_AFTER_NAMESPACE();

#endif  // PRESUM_BENCH_PLAIN_SUM_INL_H

#if HWY_ONCE

namespace presum {
namespace {

HWY_EXPORT(plain_sum_of);

// The baseline, and what it gave.
class PlainSum {
 public:
  // `count` is a multiple of 4,096.
  PlainSum(const Leaves& leaves, Dtype dtype, std::size_t count)
      : leaves_(leaves),
        bf16_(dtype == Dtype::kBF16),
        count_(count),
        traversal_{count, 0},
        sums_(count),
        result_(count * element_bytes(dtype)) {}

  std::uint64_t run() {
    PRESUM_SIMD_DISPATCH(plain_sum_of)
    (leaves_, bf16_, count_, traversal_, sums_.data(), result_.data());
    return static_cast<std::uint64_t>(result_[0]);
  }
  const std::vector<std::byte>& result() const { return result_; }

  // From now on with the tile and the prefetch distance that make it fastest here.
  void find_best_traversal() {
    Traversal best{};
    double best_s = 0;
    for (const std::size_t tile : {std::size_t{1024}, std::size_t{4096}, count_}) {
      for (const std::size_t prefetch_bytes : {0, 1024, 4096}) {
        traversal_ = {tile, prefetch_bytes};
        std::vector<double> times;
        for (int i = 0; i < 5; ++i) times.push_back(seconds([this] { return run(); }));
        if (best.tile != 0 && median(times) >= best_s) continue;
        best = traversal_;
        best_s = median(times);
      }
    }
    traversal_ = best;
  }

 private:
  const Leaves& leaves_;
  bool bf16_;
  std::size_t count_;
  Traversal traversal_;
  std::vector<float> sums_;
  std::vector<std::byte> result_;
};

}  // namespace
}  // namespace presum

#endif  // HWY_ONCE
