// SPDX-License-Identifier: Apache-2.0
#include "reduce/fixed.h"

#include <algorithm>
#include <bit>
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
  HWY_INLINE Largest begin(std::size_t) const { return {word(0)}; }
  HWY_INLINE Largest load(std::size_t i) const {
    return {hn::ShiftLeft<23>(load_bytes(exponents + i))};
  }
  HWY_INLINE void save(std::size_t i, const Largest& l) {
    hn::StoreU(hn::TruncateTo(Bytes(), exponent_of(l.size)), Bytes(), exponents + i);
  }

  std::uint8_t* exponents;
};

template <Dtype kDtype>
void exponents_of(Leaves leaves, std::size_t count, std::uint8_t* exponents) {
  const std::size_t in_vectors = count / kLanes * kLanes;
  for (std::size_t first = 0; first < in_vectors; first += kTile) {
    LargestTile tile{exponents + first};
    add_leaves<kDtype>(leaves, first, std::min(kTile, in_vectors - first), tile);
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

struct Range {
  std::uint8_t smallest, largest;
};

HWY_INLINE Range range_of(const std::uint8_t* exponents, std::size_t size) {
  const Bytes d;
  auto smallest = hn::Set(d, 255), largest = hn::Zero(d);
  for (std::size_t i = 0; i < size; i += kLanes) {
    const auto bytes = hn::LoadU(d, exponents + i);
    smallest = hn::Min(smallest, bytes);
    largest = hn::Max(largest, bytes);
  }
  std::uint8_t low[kLanes], high[kLanes];
  hn::StoreU(smallest, d, low);
  hn::StoreU(largest, d, high);
  return {*std::min_element(low, low + kLanes), *std::max_element(high, high + kLanes)};
}

HWY_INLINE bool any_special(const std::uint8_t* exponents) {
  return !hn::AllFalse(Bytes(), hn::Eq(hn::LoadU(Bytes(), exponents), hn::Set(Bytes(), 255)));
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

HWY_INLINE hn::Vec<Floats> float_of(Bits biased_exponents) {
  return hn::BitCast(Floats(), hn::ShiftLeft<23>(biased_exponents));
}

// 2^(bits + 126 - exponent). REQUIRES: that is a float, so the exponent at least bits - 1.
struct OneStep {
  hn::Vec<Floats> factor;

  HWY_INLINE OneStep(const std::uint8_t* exponents, int bits)
      : factor(float_of(
            hn::Sub(word(static_cast<std::uint32_t>(bits + 253)), load_bytes(exponents)))) {}

  HWY_INLINE hn::Vec<Floats> operator()(hn::Vec<Floats> x) const { return hn::Mul(x, factor); }
};

// The same for any exponent, as 2^(128 - exponent) * 2^(bits - 2). Only what is rounded to 0 anyway
// loses bits.
struct TwoSteps {
  hn::Vec<Floats> by_exponent, by_bits;

  HWY_INLINE TwoSteps(const std::uint8_t* exponents, int bits)
      : by_exponent(float_of(hn::Sub(word(255), hn::Max(load_bytes(exponents), word(1))))),
        by_bits(float_of(word(static_cast<std::uint32_t>(bits + 125)))) {}

  HWY_INLINE hn::Vec<Floats> operator()(hn::Vec<Floats> x) const {
    return hn::Mul(hn::Mul(x, by_exponent), by_bits);
  }
};

template <class Scale, bool kClamped>
struct Encoded32 {
  hn::Vec<Ints> sums;
  Scale scale;
  hn::Vec<Floats> largest;

  HWY_INLINE void add(const Vectors& v) {
    auto scaled = scale(v.floats);
    if constexpr (kClamped) scaled = hn::Max(hn::Min(scaled, largest), hn::Neg(largest));
    sums = hn::Add(sums, nearest(scaled));
  }
};

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
HWY_INLINE hn::Vec<LongWords> nearest64(hn::Vec<HalfFloats> x) {
  return hn::Vec<LongWords>{_mm512_maskz_cvtps_epi64(0xFF, x.raw)};
}

struct OneStep64 {
  hn::Vec<HalfFloats> low, high;

  HWY_INLINE OneStep64(const std::uint8_t* exponents, int bits) {
    const OneStep scale(exponents, bits);
    low = hn::LowerHalf(HalfFloats(), scale.factor);
    high = hn::UpperHalf(HalfFloats(), scale.factor);
  }
};

struct TwoSteps64 {
  hn::Vec<HalfFloats> low, high, by_bits;

  HWY_INLINE TwoSteps64(const std::uint8_t* exponents, int bits) {
    const TwoSteps scale(exponents, bits);
    low = hn::LowerHalf(HalfFloats(), scale.by_exponent);
    high = hn::UpperHalf(HalfFloats(), scale.by_exponent);
    by_bits = hn::LowerHalf(HalfFloats(), scale.by_bits);
  }
};

HWY_INLINE hn::Vec<LongWords> low_integers(const Vectors& v, const OneStep64& scale) {
  return nearest64(hn::Mul(v.low_floats, scale.low));
}
HWY_INLINE hn::Vec<LongWords> high_integers(const Vectors& v, const OneStep64& scale) {
  return nearest64(hn::Mul(v.high_floats, scale.high));
}
HWY_INLINE hn::Vec<LongWords> low_integers(const Vectors& v, const TwoSteps64& scale) {
  return nearest64(hn::Mul(hn::Mul(v.low_floats, scale.low), scale.by_bits));
}
HWY_INLINE hn::Vec<LongWords> high_integers(const Vectors& v, const TwoSteps64& scale) {
  return nearest64(hn::Mul(hn::Mul(v.high_floats, scale.high), scale.by_bits));
}
#else
struct OneStep64 : Sums {
  HWY_INLINE OneStep64(const std::uint8_t* exponents, int bits)
      : Sums(powers_of_two(hn::Sub(word(0), units(load_bytes(exponents), bits)))) {}
};
using TwoSteps64 = OneStep64;  // doubles have the range

// The integer nearest to x * scale, modulo 2^64, in two parts of 32 bits. An element of 24 bits has
// either a part above them or a fraction.
HWY_INLINE hn::Vec<LongWords> nearest64(Reals x, Reals scale) {
  const auto scaled = hn::Mul(x, scale);
  const auto upper = hn::MulAdd(scaled, real(0x1p-32), real(kMagic));
  const auto above = hn::Sub(upper, real(kMagic));
  const auto lower = hn::Add(hn::NegMulAdd(above, real(0x1p32), scaled), real(kMagic));
  const auto low = hn::Sub(long_words(lower), long_words(real(kMagic)));
  return hn::Add(hn::ShiftLeft<32>(long_words(upper)), low);
}

HWY_INLINE hn::Vec<LongWords> low_integers(const Vectors& v, const OneStep64& scale) {
  return nearest64(v.low, scale.low);
}
HWY_INLINE hn::Vec<LongWords> high_integers(const Vectors& v, const OneStep64& scale) {
  return nearest64(v.high, scale.high);
}
#endif

template <class Scale>
struct Encoded64 {
  hn::Vec<LongWords> low, high;
  Scale scale;

  HWY_INLINE void add(const Vectors& v) {
    low = hn::Add(low, low_integers(v, scale));
    high = hn::Add(high, high_integers(v, scale));
  }
};

// The sums of a tile, where they have to be in the end.
template <class Scale, bool kClamped>
struct EncodedTile32 {
  using Sum = Encoded32<Scale, kClamped>;

  HWY_INLINE Sum begin(std::size_t i) const { return with_scale(hn::Zero(Ints()), i); }
  HWY_INLINE Sum load(std::size_t i) const { return with_scale(hn::LoadU(Ints(), sums + i), i); }
  HWY_INLINE void save(std::size_t i, const Sum& sum) { hn::StoreU(sum.sums, Ints(), sums + i); }

  HWY_INLINE Sum with_scale(hn::Vec<Ints> from, std::size_t i) const {
    const float largest = static_cast<float>((std::uint64_t{1} << bits) - 1);
    return {from, Scale(exponents + i, bits), hn::Set(Floats(), largest)};
  }

  const std::uint8_t* exponents;
  int bits;
  std::int32_t* sums;
};

template <class Scale>
struct EncodedTile64 {
  using Sum = Encoded64<Scale>;

  HWY_INLINE Sum begin(std::size_t i) const {
    return {hn::Zero(LongWords()), hn::Zero(LongWords()), Scale(exponents + i, bits)};
  }
  HWY_INLINE Sum load(std::size_t i) const {
    return {half(i), half(i + kDoubleLanes), Scale(exponents + i, bits)};
  }
  HWY_INLINE void save(std::size_t i, const Sum& sum) {
    hn::StoreU(hn::BitCast(LongInts(), sum.low), LongInts(), sums + i);
    hn::StoreU(hn::BitCast(LongInts(), sum.high), LongInts(), sums + i + kDoubleLanes);
  }

  HWY_INLINE hn::Vec<LongWords> half(std::size_t i) const {
    return hn::BitCast(LongWords(), hn::LoadU(LongInts(), sums + i));
  }

  const std::uint8_t* exponents;
  int bits;
  std::int64_t* sums;
};

template <Dtype kDtype, class Tile, class AnyTile, class Integer>
void encode_with(Leaves leaves, std::size_t count, const std::uint8_t* exponents,
                 std::size_t total_leaves, Integer* out) {
  const int bits = fixed_bits<Integer>(total_leaves);
  const std::size_t in_vectors = count / kLanes * kLanes;
  for (std::size_t first = 0; first < in_vectors; first += kTile) {
    const std::size_t size = std::min(kTile, in_vectors - first);
    const Range range = range_of(exponents + first, size);
    if (range.smallest >= bits - 1) {
      Tile tile{exponents + first, bits, out + first};
      add_leaves<kDtype>(leaves, first, size, tile);
    } else {
      AnyTile tile{exponents + first, bits, out + first};
      add_leaves<kDtype>(leaves, first, size, tile);
    }
    if (range.largest < 255) continue;
    for (std::size_t i = first; i < first + size; i += kLanes) {
      if (!any_special(exponents + i)) continue;
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
    using Tile = EncodedTile32<TwoSteps, true>;
    encode_with<kDtype, Tile, Tile>(leaves, count, exponents, total_leaves, out);
  } else {
    encode_with<kDtype, EncodedTile32<OneStep, false>, EncodedTile32<TwoSteps, false> >(
        leaves, count, exponents, total_leaves, out);
  }
}

template <Dtype kDtype>
void encode_of(Leaves leaves, std::size_t count, const std::uint8_t* exponents,
               std::size_t total_leaves, std::int64_t* out) {
  encode_with<kDtype, EncodedTile64<OneStep64>, EncodedTile64<TwoSteps64> >(
      leaves, count, exponents, total_leaves, out);
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

// The nearest floats, where the processor converts at once.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
template <class Integer>
constexpr bool kToFloats = true;
HWY_INLINE hn::Vec<Floats> to_floats(const std::int64_t* sums) {
  const hn::Vec<HalfFloats> low{_mm512_cvtepi64_ps(hn::LoadU(LongInts(), sums).raw)};
  const hn::Vec<HalfFloats> high{
      _mm512_cvtepi64_ps(hn::LoadU(LongInts(), sums + kDoubleLanes).raw)};
  return hn::Combine(Floats(), high, low);
}
#else
template <class Integer>
constexpr bool kToFloats = sizeof(Integer) == sizeof(float);
#endif
HWY_INLINE hn::Vec<Floats> to_floats(const std::int32_t* sums) {
  return hn::ConvertTo(Floats(), hn::LoadU(Ints(), sums));
}

template <Dtype kDtype, class Integer>
class Decoder {
 public:
  HWY_INLINE Decoder(std::size_t total_leaves, std::uint32_t divisor)
      : total_leaves_(total_leaves),
        divisor_(divisor),
        bits_(fixed_bits<Integer>(total_leaves)),
        divide_(divisor) {
    if (std::has_single_bit(divisor)) least_ = bits_ + std::countr_zero(divisor);
  }

  // kLanes elements.
  HWY_INLINE void operator()(const Integer* sums, const std::uint8_t* exponents,
                             std::uint8_t* out) const {
    if constexpr (kDtype == Dtype::kF32 && kToFloats<Integer>) {
      if (least_ > 0 && put_normal(to_floats(sums), load_bytes(exponents), out)) return;
    }
    put_any(sums, exponents, out);
  }

 private:
  // A conversion and a product with a power of two: rounded once, if the result is a normal number
  // or 0. That is so from the exponent least_ on. False: not for all.
  HWY_INLINE bool put_normal(hn::Vec<Floats> sums, Bits exponents, std::uint8_t* out) const {
    const auto least = static_cast<std::uint32_t>(least_);
    const auto above = hn::Sub(exponents, word(least));
    const auto other = hn::Gt(above, word(254 - least));
    const auto zero = hn::RebindMask(Words(), hn::Eq(sums, hn::Zero(Floats())));
    if (!hn::AllFalse(Words(), hn::AndNot(zero, other))) return false;
    const auto unit = hn::ShiftLeft<23>(hn::Add(above, word(1)));
    const auto scale = hn::BitCast(Floats(), hn::IfThenZeroElse(zero, unit));
    store(hn::BitCast(Words(), hn::Mul(sums, scale)), out);
    return true;
  }

  HWY_INLINE void put_any(const Integer* sums, const std::uint8_t* exponents,
                          std::uint8_t* out) const {
    if (any_special(exponents)) {
      decode_reference(sums, exponents, 0, kLanes, total_leaves_, divisor_, kDtype, out);
      return;
    }
    const Sums unit = powers_of_two(units(load_bytes(exponents), bits_));
    const Sums x = load_sums(sums);
    store_rounded<kDtype>({divide_(hn::Mul(x.low, unit.low)), divide_(hn::Mul(x.high, unit.high))},
                          out);
  }

  std::size_t total_leaves_;
  std::uint32_t divisor_;
  int bits_;
  int least_ = 0;  // 0: there is none
  Division divide_;
};

template <Dtype kDtype, class Integer>
void decode_of(const Integer* sums, const std::uint8_t* exponents, std::size_t count,
               std::size_t total_leaves, std::uint32_t divisor, void* out) {
  const Decoder<kDtype, Integer> decode(total_leaves, divisor);
  const std::size_t in_vectors = count / kLanes * kLanes;
  for (std::size_t i = 0; i < in_vectors; i += kLanes) {
    decode(sums + i, exponents + i, static_cast<std::uint8_t*>(out) + i * element_bytes(kDtype));
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
