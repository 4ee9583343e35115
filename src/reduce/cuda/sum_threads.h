// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/host_device.h"
#include "presum/dtype.h"
#include "reduce/format.h"
#include "reduce/long_sum.h"
#include "reduce/quotient.h"

// What each thread of the CUDA kernels of presum/reduce.h does: one element of the result, with the
// functions of the scalar reference or faster ones that are tested against it. Threads share no
// data. Pointers are borrowed, and aligned to an element.
namespace presum::reduce::cuda {

inline constexpr unsigned kThreads = 256;
inline constexpr std::uint32_t kNear = 192;  // leaves that fit into a launch's argument

// Device addresses of leaves.
struct LeafList {
  const void* near[kNear];
  const void* const* far;  // in device memory, used for more than kNear leaves; otherwise nullptr
  std::uint32_t count;

  const void* operator[](std::uint32_t i) const { return far != nullptr ? far[i] : near[i]; }
};

// A kernel's argument.
struct Sum {
  LeafList leaves;
  std::uint64_t count;  // number of elements
  std::uint32_t divisor;
  void* out;
};

template <Dtype kDtype>
struct BitsOf {
  using Type = std::uint32_t;
};
template <>
struct BitsOf<Dtype::kF64> {
  using Type = std::uint64_t;
};
template <>
struct BitsOf<Dtype::kBF16> {
  using Type = std::uint16_t;
};
template <>
struct BitsOf<Dtype::kF16> {
  using Type = std::uint16_t;
};

template <Dtype kDtype>
Element element(const void* leaf, std::uint64_t i) {
  return element_of(static_cast<const typename BitsOf<kDtype>::Type*>(leaf)[i], format_of(kDtype));
}

template <Dtype kDtype>
void put(const Sum& sum, std::uint64_t i, std::uint64_t bits) {
  using Bits = typename BitsOf<kDtype>::Type;
  static_cast<Bits*>(sum.out)[i] = static_cast<Bits>(bits);
}

template <Dtype kDtype>
std::uint64_t long_sum(const Sum& sum, std::uint64_t i) {
  LongSumOf<kDtype == Dtype::kF64 ? 69 : 13> total;  // 2^15 leaves, and the three digits of a term
  for (std::uint32_t leaf = 0; leaf < sum.leaves.count; ++leaf) {
    const Element e = element<kDtype>(sum.leaves[leaf], i);
    total.add(e.negative, e.mantissa, e.shift);
  }
  return total.round(sum.divisor, format_of(kDtype).unit(), format_of(kDtype));
}

template <Dtype kDtype>
void exact(const Sum& sum, std::uint64_t i) {
  constexpr Format kFormat = format_of(kDtype);
  Specials specials;
  WindowSum near;
  bool fits = kDtype != Dtype::kF64;
  for (std::uint32_t leaf = 0; leaf < sum.leaves.count; ++leaf) {
    const Element e = element<kDtype>(sum.leaves[leaf], i);
    specials.add(e);
    if constexpr (kDtype != Dtype::kF64) fits = near.add(e) && fits;
  }
  if (specials.any()) {
    put<kDtype>(sum, i, specials.bits(kFormat));
  } else if (fits) {
    put<kDtype>(sum, i, near.round(sum.divisor, kFormat.unit(), kFormat));
  } else {
    put<kDtype>(sum, i, long_sum<kDtype>(sum, i));
  }
}

}  // namespace presum::reduce::cuda
