// SPDX-License-Identifier: Apache-2.0
#include "reduce/fixed.h"

#include <algorithm>
#include <type_traits>

#include "base/float_environment.h"
#include "base/simd_dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "reduce/fixed.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "reduce/leaves-inl.h"
#include "reduce/rounding-inl.h"

HWY_BEFORE_NAMESPACE();
namespace presum::reduce {
namespace {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128

void exponents_vectors(Leaves leaves, Dtype dtype, std::size_t count, std::uint8_t* exponents) {
  exponents_reference(leaves, dtype, 0, count, exponents);
}

template <class Integer>
void encode_vectors(Leaves leaves, Dtype dtype, std::size_t count, const std::uint8_t* exponents,
                    std::size_t total_leaves, Integer* out) {
  encode_reference(leaves, dtype, 0, count, exponents, total_leaves, out);
}

template <class Integer>
void decode_vectors(const Integer* sums, const std::uint8_t* exponents, std::size_t count,
                    std::size_t total_leaves, std::uint32_t divisor, Dtype dtype, void* out) {
  decode_reference(sums, exponents, 0, count, total_leaves, divisor, dtype, out);
}

#else

using namespace reduce::HWY_NAMESPACE;

// ---- exponents

struct Largest {
  Bits size;
  HWY_INLINE void add(const Vectors& v) { size = hn::Max(size, size_bits(v.floats)); }
};

struct LargestTile {
  static constexpr bool kInTwos = false;

  HWY_INLINE Largest begin(std::size_t) const { return {word(0)}; }
  HWY_INLINE Largest load(std::size_t i) const { return {hn::Load(Words(), sizes + i)}; }
  HWY_INLINE void save(std::size_t i, const Largest& l) { hn::Store(l.size, Words(), sizes + i); }

  alignas(64) std::uint32_t sizes[kTile];
};

template <Dtype kDtype>
void exponents_of(Leaves leaves, std::size_t count, std::uint8_t* exponents) {
  const std::size_t in_vectors = count / kLanes * kLanes;
  LargestTile tile;
  const std::size_t most = tile_of(leaves.size());
  for (std::size_t first = 0; first < in_vectors; first += most) {
    const std::size_t size = std::min(most, in_vectors - first);
    add_leaves<kDtype>(leaves, first, size, tile);
    for (std::size_t i = 0; i < size; i += kLanes) {
      const auto bytes = hn::TruncateTo(Bytes(), exponent_of(tile.load(i).size));
      hn::StoreU(bytes, Bytes(), exponents + first + i);
    }
  }
  exponents_reference(leaves, kDtype, in_vectors, count - in_vectors, exponents);
}

void exponents_vectors(Leaves leaves, Dtype dtype, std::size_t count, std::uint8_t* exponents) {
  switch (dtype) {
    case Dtype::kBF16:
      return exponents_of<Dtype::kBF16>(leaves, count, exponents);
    case Dtype::kF16:
      return exponents_of<Dtype::kF16>(leaves, count, exponents);
    default:
      return exponents_of<Dtype::kF32>(leaves, count, exponents);
  }
}

// ---- scales

HWY_INLINE bool any_special(Bits exponents) {
  return !hn::AllFalse(Words(), hn::Eq(exponents, word(255)));
}

// fixed_unit(exponent, bits)
HWY_INLINE Bits units(Bits exponents, int bits) {
  const auto offset = static_cast<std::uint32_t>(-126 - bits);
  return hn::Add(hn::Max(exponents, word(1)), word(offset));
}

// ---- encoding

// Highway's conversions mend overflows, which cannot happen here.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
HWY_INLINE hn::Vec<Ints> nearest(hn::Vec<Floats> x) {
  return hn::Vec<Ints>{_mm512_maskz_cvtps_epi32(0xFFFF, x.raw)};
}
#elif HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
HWY_INLINE hn::Vec<Ints> nearest(hn::Vec<Floats> x) {
  return hn::Vec<Ints>{_mm256_cvtps_epi32(x.raw)};
}
#else
HWY_INLINE hn::Vec<Ints> nearest(hn::Vec<Floats> x) { return hn::NearestInt(x); }
#endif

// The integer nearest to x * scale, modulo 2^64.
HWY_INLINE hn::Vec<LongWords> to_integer64(Reals x, Reals scale) {
  const auto scaled = hn::Mul(x, scale);
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  return hn::Vec<LongWords>{_mm512_maskz_cvtpd_epi64(0xFF, scaled.raw)};
#else
  // In two parts of 32 bits. An element of 24 bits has either a part above them or a fraction.
  const auto upper = hn::MulAdd(scaled, real(0x1p-32), real(kMagic));
  const auto above = hn::Sub(upper, real(kMagic));
  const auto lower = hn::Add(hn::NegMulAdd(above, real(0x1p32), scaled), real(kMagic));
  const auto low = hn::Sub(long_words(lower), long_words(real(kMagic)));
  return hn::Add(hn::ShiftLeft<32>(long_words(upper)), low);
#endif
}

// Scaled in two steps, because the scale of small elements is no float. Only what is rounded to 0
// anyway loses bits.
template <bool kClamped>
struct Encoded32 {
  hn::Vec<Ints> sums;
  hn::Vec<Floats> scale, scale_more, largest;

  HWY_INLINE void add(const Vectors& v) {
    auto scaled = hn::Mul(hn::Mul(v.floats, scale), scale_more);
    if constexpr (kClamped) scaled = hn::Max(hn::Min(scaled, largest), hn::Neg(largest));
    sums = hn::Add(sums, nearest(scaled));
  }
};

struct Encoded64 {
  hn::Vec<LongWords> low, high;
  Sums scale;

  HWY_INLINE void add(const Vectors& v) {
    low = hn::Add(low, to_integer64(v.low, scale.low));
    high = hn::Add(high, to_integer64(v.high, scale.high));
  }
};

// 2^power, for powers from -126 to 127.
HWY_INLINE hn::Vec<Floats> float_power(hn::Vec<Ints> power) {
  return hn::BitCast(Floats(), hn::ShiftLeft<23>(hn::Add(power, hn::Set(Ints(), 127))));
}

template <bool kClamped>
class EncodedTile32 {
 public:
  static constexpr bool kInTwos = false;
  using Sum = Encoded32<kClamped>;

  HWY_INLINE EncodedTile32(const std::uint8_t* exponents, int bits)
      : exponents_(exponents), bits_(bits) {}

  HWY_INLINE Sum begin(std::size_t i) const { return with_scale(hn::Zero(Ints()), i); }
  HWY_INLINE Sum load(std::size_t i) const { return with_scale(hn::Load(Ints(), sums_ + i), i); }
  HWY_INLINE void save(std::size_t i, const Sum& sum) { hn::Store(sum.sums, Ints(), sums_ + i); }
  const std::int32_t* sums() const { return sums_; }

 private:
  HWY_INLINE Sum with_scale(hn::Vec<Ints> sums, std::size_t i) const {
    const auto unit = hn::BitCast(Ints(), units(load_bytes(exponents_ + i), bits_));
    const auto power = hn::Neg(unit);
    const auto half = hn::ShiftRight<1>(power);
    const float largest = static_cast<float>((std::uint64_t{1} << bits_) - 1);
    return {sums, float_power(half), float_power(hn::Sub(power, half)), hn::Set(Floats(), largest)};
  }

  const std::uint8_t* exponents_;
  int bits_;
  alignas(64) std::int32_t sums_[kTile];
};

class EncodedTile64 {
 public:
  static constexpr bool kInTwos = false;

  HWY_INLINE EncodedTile64(const std::uint8_t* exponents, int bits)
      : exponents_(exponents), bits_(bits) {}

  HWY_INLINE Encoded64 begin(std::size_t i) const {
    return {hn::Zero(LongWords()), hn::Zero(LongWords()), scale(i)};
  }
  HWY_INLINE Encoded64 load(std::size_t i) const {
    return {hn::Load(LongWords(), sums_ + i), hn::Load(LongWords(), sums_ + i + kDoubleLanes),
            scale(i)};
  }
  HWY_INLINE void save(std::size_t i, const Encoded64& sum) {
    hn::Store(sum.low, LongWords(), sums_ + i);
    hn::Store(sum.high, LongWords(), sums_ + i + kDoubleLanes);
  }
  const std::uint64_t* sums() const { return sums_; }

 private:
  HWY_INLINE Sums scale(std::size_t i) const {
    return powers_of_two(hn::Sub(word(0), units(load_bytes(exponents_ + i), bits_)));
  }

  const std::uint8_t* exponents_;
  int bits_;
  alignas(64) std::uint64_t sums_[kTile];
};

template <Dtype kDtype, class Tile, class Integer>
void encode_with(Leaves leaves, std::size_t count, const std::uint8_t* exponents,
                 std::size_t total_leaves, Integer* out) {
  const std::size_t in_vectors = count / kLanes * kLanes;
  const std::size_t most = tile_of(leaves.size());
  for (std::size_t first = 0; first < in_vectors; first += most) {
    const std::size_t size = std::min(most, in_vectors - first);
    Tile tile(exponents + first, fixed_bits<Integer>(total_leaves));
    add_leaves<kDtype>(leaves, first, size, tile);
    for (std::size_t i = 0; i < size; ++i) out[first + i] = static_cast<Integer>(tile.sums()[i]);
    for (std::size_t i = first; i < first + size; i += kLanes) {
      if (!any_special(load_bytes(exponents + i))) continue;
      encode_reference(leaves, kDtype, i, kLanes, exponents, total_leaves, out);
    }
  }
  encode_reference(leaves, kDtype, in_vectors, count - in_vectors, exponents, total_leaves, out);
}

// With at least as many bits as an element has, rounding cannot reach 2^bits.
template <Dtype kDtype>
void encode_of(Leaves leaves, std::size_t count, const std::uint8_t* exponents,
               std::size_t total_leaves, std::int32_t* out) {
  if (fixed_bits<std::int32_t>(total_leaves) < format_of(kDtype).precision()) {
    encode_with<kDtype, EncodedTile32<true> >(leaves, count, exponents, total_leaves, out);
  } else {
    encode_with<kDtype, EncodedTile32<false> >(leaves, count, exponents, total_leaves, out);
  }
}

template <Dtype kDtype>
void encode_of(Leaves leaves, std::size_t count, const std::uint8_t* exponents,
               std::size_t total_leaves, std::int64_t* out) {
  encode_with<kDtype, EncodedTile64>(leaves, count, exponents, total_leaves, out);
}

template <class Integer>
void encode_vectors(Leaves leaves, Dtype dtype, std::size_t count, const std::uint8_t* exponents,
                    std::size_t total_leaves, Integer* out) {
  switch (dtype) {
    case Dtype::kBF16:
      return encode_of<Dtype::kBF16>(leaves, count, exponents, total_leaves, out);
    case Dtype::kF16:
      return encode_of<Dtype::kF16>(leaves, count, exponents, total_leaves, out);
    default:
      return encode_of<Dtype::kF32>(leaves, count, exponents, total_leaves, out);
  }
}

// ---- decoding

HWY_INLINE Sums load_sums(const std::int32_t* sums) {
  return {hn::PromoteTo(Doubles(), hn::LoadU(HalfInts(), sums)),
          hn::PromoteTo(Doubles(), hn::LoadU(HalfInts(), sums + kDoubleLanes))};
}

HWY_INLINE Sums load_sums(const std::int64_t* sums) {
  return {integers_to_odd(hn::LoadU(LongInts(), sums)),
          integers_to_odd(hn::LoadU(LongInts(), sums + kDoubleLanes))};
}

template <Dtype kDtype, class Integer>
void decode_of(const Integer* sums, const std::uint8_t* exponents, std::size_t count,
               std::size_t total_leaves, std::uint32_t divisor, void* out) {
  const int bits = fixed_bits<Integer>(total_leaves);
  const Division divide(divisor);
  const std::size_t in_vectors = count / kLanes * kLanes;
  for (std::size_t i = 0; i < in_vectors; i += kLanes) {
    const Bits bytes = load_bytes(exponents + i);
    if (any_special(bytes)) {
      decode_reference(sums, exponents, i, kLanes, total_leaves, divisor, kDtype, out);
      continue;
    }
    const Sums unit = powers_of_two(units(bytes, bits));
    const Sums x = load_sums(sums + i);
    store_rounded<kDtype>({divide(hn::Mul(x.low, unit.low)), divide(hn::Mul(x.high, unit.high))},
                          static_cast<std::uint8_t*>(out) + i * element_bytes(kDtype));
  }
  decode_reference(sums, exponents, in_vectors, count - in_vectors, total_leaves, divisor, kDtype,
                   out);
}

template <class Integer>
void decode_vectors(const Integer* sums, const std::uint8_t* exponents, std::size_t count,
                    std::size_t total_leaves, std::uint32_t divisor, Dtype dtype, void* out) {
  switch (dtype) {
    case Dtype::kBF16:
      return decode_of<Dtype::kBF16>(sums, exponents, count, total_leaves, divisor, out);
    case Dtype::kF16:
      return decode_of<Dtype::kF16>(sums, exponents, count, total_leaves, divisor, out);
    default:
      return decode_of<Dtype::kF32>(sums, exponents, count, total_leaves, divisor, out);
  }
}

#endif

void encode32_vectors(Leaves leaves, Dtype dtype, std::size_t count, const std::uint8_t* exponents,
                      std::size_t total_leaves, std::int32_t* out) {
  encode_vectors(leaves, dtype, count, exponents, total_leaves, out);
}

void encode64_vectors(Leaves leaves, Dtype dtype, std::size_t count, const std::uint8_t* exponents,
                      std::size_t total_leaves, std::int64_t* out) {
  encode_vectors(leaves, dtype, count, exponents, total_leaves, out);
}

void decode32_vectors(const std::int32_t* sums, const std::uint8_t* exponents, std::size_t count,
                      std::size_t total_leaves, std::uint32_t divisor, Dtype dtype, void* out) {
  decode_vectors(sums, exponents, count, total_leaves, divisor, dtype, out);
}

void decode64_vectors(const std::int64_t* sums, const std::uint8_t* exponents, std::size_t count,
                      std::size_t total_leaves, std::uint32_t divisor, Dtype dtype, void* out) {
  decode_vectors(sums, exponents, count, total_leaves, divisor, dtype, out);
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace
}  // namespace presum::reduce
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace presum::reduce {
namespace {

HWY_EXPORT(exponents_vectors);
HWY_EXPORT(encode32_vectors);
HWY_EXPORT(encode64_vectors);
HWY_EXPORT(decode32_vectors);
HWY_EXPORT(decode64_vectors);

}  // namespace

void exponents_kernel(Leaves leaves, Dtype dtype, std::size_t count, std::uint8_t* exponents) {
  const base::DefaultFloatEnvironment environment;
  PRESUM_SIMD_DISPATCH(exponents_vectors)(leaves, dtype, count, exponents);
}

template <class Integer>
void encode_kernel(Leaves leaves, Dtype dtype, std::size_t count, const std::uint8_t* exponents,
                   std::size_t total_leaves, Integer* out) {
  const base::DefaultFloatEnvironment environment;
  if constexpr (std::is_same_v<Integer, std::int32_t>) {
    PRESUM_SIMD_DISPATCH(encode32_vectors)(leaves, dtype, count, exponents, total_leaves, out);
  } else {
    PRESUM_SIMD_DISPATCH(encode64_vectors)(leaves, dtype, count, exponents, total_leaves, out);
  }
}

template <class Integer>
void decode_kernel(const Integer* sums, const std::uint8_t* exponents, std::size_t count,
                   std::size_t total_leaves, std::uint32_t divisor, Dtype dtype, void* out) {
  const base::DefaultFloatEnvironment environment;
  if (divisor > kKernelDivisorMax) {
    decode_reference(sums, exponents, 0, count, total_leaves, divisor, dtype, out);
  } else if constexpr (std::is_same_v<Integer, std::int32_t>) {
    PRESUM_SIMD_DISPATCH(decode32_vectors)
    (sums, exponents, count, total_leaves, divisor, dtype, out);
  } else {
    PRESUM_SIMD_DISPATCH(decode64_vectors)
    (sums, exponents, count, total_leaves, divisor, dtype, out);
  }
}

template void encode_kernel(Leaves, Dtype, std::size_t, const std::uint8_t*, std::size_t,
                            std::int32_t*);
template void encode_kernel(Leaves, Dtype, std::size_t, const std::uint8_t*, std::size_t,
                            std::int64_t*);
template void decode_kernel(const std::int32_t*, const std::uint8_t*, std::size_t, std::size_t,
                            std::uint32_t, Dtype, void*);
template void decode_kernel(const std::int64_t*, const std::uint8_t*, std::size_t, std::size_t,
                            std::uint32_t, Dtype, void*);

}  // namespace presum::reduce

#endif  // HWY_ONCE
