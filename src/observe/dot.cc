// SPDX-License-Identifier: Apache-2.0
#include "observe/dot.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/float_environment.h"
#include "base/simd_dispatch.h"
#include "observe/elements.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "observe/dot.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "base/vectors-inl.h"
#include "hwy/highway.h"

#ifndef PRESUM_OBSERVE_DOT_ONCE
#define PRESUM_OBSERVE_DOT_ONCE

namespace presum::observe {
namespace {

constexpr std::size_t kAccumulators = 16;
constexpr std::size_t kPart = 64;  // elements handled together

double tree_sum(std::array<double, kAccumulators>& sums) {
  for (std::size_t half = kAccumulators / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

}  // namespace
}  // namespace presum::observe

#endif  // PRESUM_OBSERVE_DOT_ONCE

HWY_BEFORE_NAMESPACE();
namespace presum::observe {
namespace {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

double dot_kernel(const void* a, const void* b, std::size_t count, Dtype dtype) {
  return dot_reference(a, b, count, dtype);
}

#else

namespace hn = hwy::HWY_NAMESPACE;
using namespace base::HWY_NAMESPACE;

constexpr std::size_t kSums = kAccumulators / kDoubleLanes;
static_assert(kLanes <= kAccumulators);

template <Dtype kDtype>
class Product {
 public:
  HWY_INLINE Product() {
    for (auto& sum : sums_) sum = hn::Zero(Doubles());
  }

  HWY_INLINE double of(const std::uint8_t* a, const std::uint8_t* b, std::size_t count) {
    const std::size_t whole = count / kPart * kPart;
    for (std::size_t i = 0; i < whole; i += kPart) {
      prefetch(a + i * kBytes);
      prefetch(b + i * kBytes);
      part(a + i * kBytes, b + i * kBytes);
    }
    if (whole < count) last_part(a + whole * kBytes, b + whole * kBytes, count - whole);
    std::array<double, kAccumulators> sums;
    for (std::size_t v = 0; v < kSums; ++v) {
      hn::StoreU(sums_[v], Doubles(), sums.data() + v * kDoubleLanes);
    }
    return tree_sum(sums);
  }

 private:
  static constexpr std::size_t kBytes = element_bytes(kDtype);
  static constexpr std::size_t kAhead = 2048;

  static HWY_INLINE void prefetch(const std::uint8_t* from) {
    const auto at = reinterpret_cast<std::uintptr_t>(from) + kAhead;
    for (std::size_t line = 0; line < kPart * kBytes; line += 64) {
      __builtin_prefetch(reinterpret_cast<const void*>(at + line));
    }
  }

  HWY_INLINE void part(const std::uint8_t* a, const std::uint8_t* b) {
    steps(std::make_index_sequence<kPart / kLanes>(), a, b);
  }

  template <std::size_t... kStep>
  HWY_INLINE void steps(std::index_sequence<kStep...>, const std::uint8_t* a,
                        const std::uint8_t* b) {
    (step<2 * kStep % kSums>(a + kStep * kLanes * kBytes, b + kStep * kLanes * kBytes), ...);
  }

  template <std::size_t kSum>
  HWY_INLINE void step(const std::uint8_t* a, const std::uint8_t* b) {
    const Vectors x = read<kDtype>(a);
    const Vectors y = read<kDtype>(b);
    sums_[kSum] = add_product(x.low, y.low, sums_[kSum]);
    sums_[kSum + 1] = add_product(x.high, y.high, sums_[kSum + 1]);
  }

  // A fused multiply-add is as good as two operations where the product is exact.
  static HWY_INLINE hn::Vec<Doubles> add_product(hn::Vec<Doubles> x, hn::Vec<Doubles> y,
                                                 hn::Vec<Doubles> sum) {
    return kDtype == Dtype::kF64 ? hn::Add(sum, hn::Mul(x, y)) : hn::MulAdd(x, y, sum);
  }

  // Padded with zeros, whose products leave every sum as it is.
  HWY_INLINE void last_part(const std::uint8_t* a, const std::uint8_t* b, std::size_t elements) {
    alignas(64) std::uint8_t x[kPart * kBytes] = {};
    alignas(64) std::uint8_t y[kPart * kBytes] = {};
    std::memcpy(x, a, elements * kBytes);
    std::memcpy(y, b, elements * kBytes);
    part(x, y);
  }

  hn::Vec<Doubles> sums_[kSums];
};

double dot_kernel(const void* a, const void* b, std::size_t count, Dtype dtype) {
  const auto* x = static_cast<const std::uint8_t*>(a);
  const auto* y = static_cast<const std::uint8_t*>(b);
  switch (dtype) {
    case Dtype::kF32:
      return Product<Dtype::kF32>().of(x, y, count);
    case Dtype::kF64:
      return Product<Dtype::kF64>().of(x, y, count);
    case Dtype::kBF16:
      return Product<Dtype::kBF16>().of(x, y, count);
    case Dtype::kF16:
      return Product<Dtype::kF16>().of(x, y, count);
  }
  return 0;
}

#endif

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace
}  // namespace presum::observe
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace presum::observe {
namespace {

HWY_EXPORT(dot_kernel);

}  // namespace

double dot(const void* a, const void* b, std::size_t count, Dtype dtype) noexcept {
  const base::DefaultFloatEnvironment environment;
  return PRESUM_SIMD_DISPATCH(dot_kernel)(a, b, count, dtype);
}

double dot_reference(const void* a, const void* b, std::size_t count, Dtype dtype) noexcept {
  const base::DefaultFloatEnvironment environment;
  const Elements x(a, dtype);
  const Elements y(b, dtype);
  std::array<double, kAccumulators> sums{};
  for (std::size_t i = 0; i < count; ++i) sums[i % kAccumulators] += x.value(i) * y.value(i);
  return tree_sum(sums);
}

}  // namespace presum::observe

#endif  // HWY_ONCE
