// SPDX-License-Identifier: Apache-2.0
//
// Elements of any dtype as vectors, for sources that compile a kernel for every target. Include it
// after hwy/foreach_target.h, once per target.
#if defined(PRESUM_BASE_VECTORS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef PRESUM_BASE_VECTORS_INL_H
#undef PRESUM_BASE_VECTORS_INL_H
#else
#define PRESUM_BASE_VECTORS_INL_H
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "presum/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace presum::base::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Words = hn::Repartition<std::uint32_t, Floats>;
using LongWords = hn::Repartition<std::uint64_t, Floats>;
using Doubles = hn::Repartition<double, Floats>;
using HalfFloats = hn::Rebind<float, Doubles>;  // as many lanes as Doubles
using Shorts = hn::Rebind<std::uint16_t, Floats>;

using Reals = hn::Vec<Doubles>;

constexpr std::size_t kLanes = hn::MaxLanes(Floats());
constexpr std::size_t kDoubleLanes = kLanes / 2;

HWY_INLINE Reals real(double value) { return hn::Set(Doubles(), value); }

template <Dtype kDtype>
HWY_INLINE const std::uint8_t* element(const void* buffer, std::size_t i) {
  return static_cast<const std::uint8_t*>(buffer) + i * element_bytes(kDtype);
}

// Prefetches into the second-level cache: the first-level cache accepts fewer outstanding requests
// than memory can serve. Prefetching past the end of a buffer is harmless, but a pointer must not
// be advanced that far.
template <int kLocality = 2>
HWY_INLINE void prefetch(const void* from, std::size_t bytes) {
  const auto at = reinterpret_cast<std::uintptr_t>(from) + bytes;
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  __builtin_prefetch(reinterpret_cast<const void*>(at), 0, kLocality);
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const std::uint8_t* from) {
  return hn::BitCast(d, hn::LoadU(hn::Repartition<std::uint8_t, D>(), from));
}

// Rounds to the nearest floats. Too large numbers become infinite, on EMU128 too.
HWY_INLINE hn::Vec<HalfFloats> narrowed(Reals x) {
#if HWY_TARGET == HWY_EMU128
  hn::Vec<HalfFloats> floats;
  for (std::size_t i = 0; i < kDoubleLanes; ++i) floats.raw[i] = static_cast<float>(x.raw[i]);
  return floats;
#else
  return hn::DemoteTo(HalfFloats(), x);
#endif
}

// kLanes elements, exact as doubles. For f64, `floats` is rounded, and the words fill two vectors:
// `words` and `words_high`.
struct Vectors {
  hn::Vec<Floats> floats;
  hn::Vec<HalfFloats> low_floats, high_floats;
  hn::Vec<Doubles> low, high;
  hn::Vec<Words> words, words_high;
};

HWY_INLINE void split(Vectors& v) {
  v.low_floats = hn::LowerHalf(HalfFloats(), v.floats);
  v.high_floats = hn::UpperHalf(HalfFloats(), v.floats);
}

HWY_INLINE void widen_halves(Vectors& v) {
  v.low = hn::PromoteTo(Doubles(), v.low_floats);
  v.high = hn::PromoteTo(Doubles(), v.high_floats);
}

HWY_INLINE void widen(Vectors& v) {
  split(v);
  widen_halves(v);
}

// Widens floats from memory. Clang would widen a register with the same floats instead, which needs
// an additional shuffle; GCC uses the memory operand, and optimizes inline assembly worse.
#if HWY_TARGET == HWY_AVX2 && defined(__clang__)
HWY_INLINE hn::Vec<Doubles> widened(const std::uint8_t* floats) {
  hn::Vec<Doubles> doubles;
  const auto& from = *reinterpret_cast<const std::uint8_t(*)[kDoubleLanes * sizeof(float)]>(floats);
  asm("vcvtps2pd %1, %0" : "=v"(doubles.raw) : "m"(from));
  return doubles;
}
#else
HWY_INLINE hn::Vec<Doubles> widened(const std::uint8_t* floats) {
  return hn::PromoteTo(Doubles(), load(HalfFloats(), floats));
}
#endif

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
HWY_INLINE hn::Vec<Floats> from_half(hn::Vec<Shorts> halves, hn::Vec<Words>) {
  return hn::PromoteTo(Floats(), hn::BitCast(hn::Rebind<hwy::float16_t, Floats>(), halves));
}
#else
// Moves exponent and mantissa to their positions in a float and multiplies by 2^112 for the
// difference in bias. Infinities and NaNs also get all exponent bits set.
HWY_INLINE hn::Vec<Floats> from_half(hn::Vec<Shorts>, hn::Vec<Words> halves) {
  const Floats df;
  const Words dw;
  const auto magnitude = hn::And(halves, hn::Set(dw, 0x7FFF));
  const auto sign = hn::ShiftLeft<16>(hn::Xor(halves, magnitude));
  const auto scaled = hn::Mul(hn::BitCast(df, hn::ShiftLeft<13>(magnitude)), hn::Set(df, 0x1p112F));
  const auto special = hn::VecFromMask(dw, hn::Gt(magnitude, hn::Set(dw, 0x7BFF)));
  const auto exponent = hn::And(special, hn::Set(dw, 0x7F800000));
  return hn::BitCast(df, hn::Or(hn::BitCast(dw, scaled), hn::Or(sign, exponent)));
}
#endif

template <Dtype kDtype>
HWY_INLINE Vectors read(const std::uint8_t* from) {
  Vectors v;
  if constexpr (kDtype == Dtype::kF64) {
    v.low = load(Doubles(), from);
    v.high = load(Doubles(), from + kDoubleLanes * sizeof(double));
    v.floats = hn::Combine(Floats(), narrowed(v.high), narrowed(v.low));
    split(v);
    v.words = hn::BitCast(Words(), v.low);
    v.words_high = hn::BitCast(Words(), v.high);
  } else if constexpr (kDtype == Dtype::kF32) {
    // Loads the halves again; this is cheaper than splitting a register.
    v.floats = load(Floats(), from);
    v.low_floats = load(HalfFloats(), from);
    v.high_floats = load(HalfFloats(), from + kDoubleLanes * sizeof(float));
    v.low = widened(from);
    v.high = widened(from + kDoubleLanes * sizeof(float));
    v.words = hn::BitCast(Words(), v.floats);
  } else {
    const auto shorts = load(Shorts(), from);
    v.words = hn::PromoteTo(Words(), shorts);
    v.floats = kDtype == Dtype::kBF16 ? hn::BitCast(Floats(), hn::ShiftLeft<16>(v.words))
                                      : from_half(shorts, v.words);
    widen(v);
  }
  return v;
}

}  // namespace presum::base::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // PRESUM_BASE_VECTORS_INL_H
