// SPDX-License-Identifier: Apache-2.0
#include "reduce/gram.h"

#include <algorithm>
#include <cstring>

#include "base/float_environment.h"
#include "base/simd_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "reduce/gram.cc"
#include "hwy/foreach_target.h"
// Must come after foreach_target.h:
#include "base/vectors-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace presum::reduce {
namespace {
namespace HWY_NAMESPACE {

using namespace base::HWY_NAMESPACE;

constexpr std::size_t kVectors = kGramLanes / kDoubleLanes;  // for the sums of one pair
constexpr std::size_t kPartners = 8 / kVectors;  // leaves for which another leaf is read once

template <Dtype kDtype>
HWY_INLINE Reals add_product(Reals a, Reals b, Reals sum) {
  // Fused, if the product is exact.
  if constexpr (kDtype == Dtype::kF64) return hn::Add(sum, hn::Mul(a, b));
  return hn::MulAdd(a, b, sum);
}

HWY_INLINE double sum_lanes(const Reals* sums) {
  double lanes[kGramLanes];
  for (std::size_t v = 0; v < kVectors; ++v) {
    hn::StoreU(sums[v], Doubles(), lanes + v * kDoubleLanes);
  }
  for (std::size_t half = kGramLanes / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) lanes[j] += lanes[j + half];
  }
  return lanes[0];
}

// One block of all leaves, as doubles; zeros fill a partial block.
template <Dtype kDtype>
class Block {
 public:
  HWY_INLINE void fill(Leaves leaves, std::size_t first, std::size_t size) {
    for (std::size_t leaf = 0; leaf < leaves.size(); ++leaf) {
      fill_row(element<kDtype>(leaves[leaf], first), size, values_[leaf]);
    }
  }

  // Dot products of leaf `a` with kCount leaves, starting at `b`.
  template <std::size_t kCount>
  HWY_INLINE void dots(std::size_t a, std::size_t b, double* results) const {
    Reals sums[kCount][kVectors];
    for (auto& pair : sums) {
      for (auto& sum : pair) sum = real(0);
    }
    for (std::size_t i = 0; i < kGramBlock; i += kGramLanes) {
      for (std::size_t v = 0; v < kVectors; ++v) {
        const std::size_t at = i + v * kDoubleLanes;
        const auto left = hn::Load(Doubles(), values_[a] + at);
        for (std::size_t k = 0; k < kCount; ++k) {
          sums[k][v] =
              add_product<kDtype>(left, hn::Load(Doubles(), values_[b + k] + at), sums[k][v]);
        }
      }
    }
    for (std::size_t k = 0; k < kCount; ++k) results[k] = sum_lanes(sums[k]);
  }

 private:
  static HWY_INLINE void fill_row(const std::uint8_t* from, std::size_t size, double* row) {
    std::size_t i = 0;
    for (; i + kLanes <= size; i += kLanes) fill_vector(from + i * kBytes, row + i);
    if (i < size) {
      std::uint8_t rest[kLanes * kBytes] = {};
      std::memcpy(rest, from + i * kBytes, (size - i) * kBytes);
      fill_vector(rest, row + i);
      i += kLanes;
    }
    for (; i < kGramBlock; i += kDoubleLanes) hn::Store(real(0), Doubles(), row + i);
  }

  static HWY_INLINE void fill_vector(const std::uint8_t* from, double* to) {
    const Vectors v = read<kDtype>(from);
    hn::Store(v.low, Doubles(), to);
    hn::Store(v.high, Doubles(), to + kDoubleLanes);
  }

  static constexpr std::size_t kBytes = element_bytes(kDtype);
  alignas(64) double values_[kGramLeavesMax][kGramBlock];
};

template <std::size_t kCount, class Block>
HWY_INLINE void add_dots(const Block& block, std::size_t a, std::size_t b, std::size_t n,
                         std::span<double> gram) {
  double dots[kCount];
  block.template dots<kCount>(a, b, dots);
  for (std::size_t k = 0; k < kCount; ++k) {
    gram[a * n + b + k] += dots[k];
    if (b + k != a) gram[(b + k) * n + a] += dots[k];
  }
}

template <Dtype kDtype>
void gram_of(Leaves leaves, std::size_t count, std::span<double> gram) {
  Block<kDtype> block;
  const std::size_t n = leaves.size();
  for (std::size_t first = 0; first < count; first += kGramBlock) {
    block.fill(leaves, first, std::min(kGramBlock, count - first));
    for (std::size_t a = 0; a < n; ++a) {
      std::size_t b = a;
      for (; b + kPartners <= n; b += kPartners) add_dots<kPartners>(block, a, b, n, gram);
      for (; b < n; ++b) add_dots<1>(block, a, b, n, gram);
    }
  }
}

void gram_vectors(Leaves leaves, Dtype dtype, std::size_t count, std::span<double> gram) {
  PRESUM_RETURN_BY_DTYPE(dtype, gram_of, leaves, count, gram)
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace
}  // namespace presum::reduce
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace presum::reduce {

HWY_EXPORT(gram_vectors);

void gram_kernel(Leaves leaves, Dtype dtype, std::size_t count, std::span<double> gram) {
  const base::DefaultFloatEnvironment environment;
  PRESUM_SIMD_DISPATCH(gram_vectors)(leaves, dtype, count, gram);
}

}  // namespace presum::reduce

#endif  // HWY_ONCE
