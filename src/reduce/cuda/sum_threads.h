// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/host_device.h"
#include "presum/dtype.h"
#include "reduce/binned_element.h"
#include "reduce/fixed_element.h"
#include "reduce/format.h"
#include "reduce/long_sum.h"
#include "reduce/quotient.h"

// What each thread of the CUDA kernels of presum/reduce.h does: one element of the result, with the
// functions that the scalar reference uses, or faster ones that are tested against it. Threads meet
// nowhere. Pointers are borrowed, and aligned to an element.
namespace presum::reduce::cuda {

inline constexpr unsigned kThreads = 256;
inline constexpr std::uint32_t kNear = 192;  // leaves that a launch's argument has room for

// Addresses of leaves on the device.
struct LeafList {
  const void* near[kNear];
  const void* const* far;  // in device memory where there are more; else nullptr
  std::uint32_t count;

  const void* operator[](std::uint32_t i) const { return far != nullptr ? far[i] : near[i]; }
};

// Every kernel's argument; each uses of it what it needs.
struct Sum {
  LeafList leaves;
  std::uint64_t count;         // of elements
  std::uint32_t total_leaves;  // of all workers
  std::uint32_t divisor;
  std::uint8_t* top;  // exponents of a fixed sum, bins of a binned one
  void* high;         // integers of a fixed sum, digits of a binned one
  std::int64_t* low;
  const std::uint8_t* other_top;  // a binned sum's, to merge or to raise to
  const std::int64_t* other_high;
  const std::int64_t* other_low;
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

// ---- exact

template <Dtype kDtype>
std::uint64_t long_sum(const Sum& sum, std::uint64_t i) {
  LongSumOf<kDtype == Dtype::kF64 ? 69 : 13> total;  // 2^15 leaves, and a term's three digits
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

// ---- fixed

template <Dtype kDtype>
std::uint8_t exponent(const Sum& sum, std::uint64_t i) {
  std::uint8_t largest = 0;
  for (std::uint32_t leaf = 0; leaf < sum.leaves.count; ++leaf) {
    const std::uint8_t one = exponent_of(element<kDtype>(sum.leaves[leaf], i), format_of(kDtype));
    if (one > largest) largest = one;
  }
  return largest;
}

template <Dtype kDtype>
std::int64_t integer(const Sum& sum, std::uint64_t i, std::uint8_t exponent, int bits) {
  std::int64_t total = 0;
  for (std::uint32_t leaf = 0; leaf < sum.leaves.count; ++leaf) {
    total += encode(element<kDtype>(sum.leaves[leaf], i), format_of(kDtype), exponent, bits);
  }
  return total;
}

inline std::uint64_t fixed_result(std::int64_t total, std::uint8_t exponent, int bits,
                                  std::uint32_t divisor, Format f) {
  if (exponent == 255 && total != 0) return counted(total).bits(f);
  return round_quotient(total, divisor, fixed_unit(exponent, bits), f);
}

template <Dtype kDtype>
void exponents(const Sum& sum, std::uint64_t i) {
  sum.top[i] = exponent<kDtype>(sum, i);
}

template <Dtype kDtype, class Integer>
void encode_leaves(const Sum& sum, std::uint64_t i) {
  static_cast<Integer*>(sum.high)[i] = static_cast<Integer>(
      integer<kDtype>(sum, i, sum.top[i], fixed_bits<Integer>(sum.total_leaves)));
}

template <Dtype kDtype, class Integer>
void decode(const Sum& sum, std::uint64_t i) {
  put<kDtype>(sum, i,
              fixed_result(static_cast<const Integer*>(sum.high)[i], sum.top[i],
                           fixed_bits<Integer>(sum.total_leaves), sum.divisor, format_of(kDtype)));
}

template <Dtype kDtype, class Integer>
void fixed(const Sum& sum, std::uint64_t i) {
  const int bits = fixed_bits<Integer>(sum.leaves.count);
  const std::uint8_t largest = exponent<kDtype>(sum, i);
  put<kDtype>(sum, i,
              fixed_result(integer<kDtype>(sum, i, largest, bits), largest, bits, sum.divisor,
                           format_of(kDtype)));
}

// ---- binned

inline BinnedState state(const Sum& sum, std::uint64_t i) {
  return {sum.top[i], static_cast<const std::int64_t*>(sum.high)[i], sum.low[i]};
}

inline void set_state(const Sum& sum, std::uint64_t i, const BinnedState& s) {
  sum.top[i] = s.top;
  static_cast<std::int64_t*>(sum.high)[i] = s.high;
  sum.low[i] = s.low;
}

template <Dtype kDtype>
void binned_add(const Sum& sum, std::uint64_t i) {
  BinnedState s = state(sum, i);
  for (std::uint32_t leaf = 0; leaf < sum.leaves.count; ++leaf) {
    s = with(s, element<kDtype>(sum.leaves[leaf], i), format_of(kDtype));
  }
  set_state(sum, i, s);
}

inline void binned_raise(const Sum& sum, std::uint64_t i) {
  set_state(sum, i, raised(state(sum, i), sum.other_top[i]));
}

inline void binned_merge(const Sum& sum, std::uint64_t i) {
  set_state(sum, i, merged(state(sum, i), {sum.other_top[i], sum.other_high[i], sum.other_low[i]}));
}

template <Dtype kDtype>
void binned_decode(const Sum& sum, std::uint64_t i) {
  constexpr Format kFormat = format_of(kDtype);
  const BinnedState s = state(sum, i);
  if (s.top == kSpecialBin) {
    put<kDtype>(sum, i, special_bits(s, kFormat));
    return;
  }
  const WideInt digits = (static_cast<WideInt>(s.high) << kBinBits) + s.low;
  put<kDtype>(sum, i, round_quotient(digits, sum.divisor, bin_unit(s.top - 1), kFormat));
}

}  // namespace presum::reduce::cuda
