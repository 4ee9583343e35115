// SPDX-License-Identifier: Apache-2.0
#include "reduce/fixed.h"

#include <algorithm>
#include <bit>
#include <type_traits>
#include <utility>

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

template <class Integer>
void fixed_vectors(Leaves leaves, Dtype dtype, std::size_t count, std::uint32_t divisor,
                   void* out) {
  fixed_reference<Integer>(leaves, dtype, 0, count, divisor, out);
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
  exponents_reference(leaves, kDtype, in_vectors, count - in_vectors, exponents + in_vectors);
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

  HWY_INLINE OneStep(Bits exponents, int bits)
      : factor(float_of(hn::Sub(word(static_cast<std::uint32_t>(bits + 253)), exponents))) {}

  HWY_INLINE hn::Vec<Floats> operator()(hn::Vec<Floats> x) const { return hn::Mul(x, factor); }
};

// The same for any exponent, as 2^(128 - exponent) * 2^(bits - 2). Only what is rounded to 0 anyway
// loses bits.
struct TwoSteps {
  hn::Vec<Floats> by_exponent, by_bits;

  HWY_INLINE TwoSteps(Bits exponents, int bits)
      : by_exponent(float_of(hn::Sub(word(255), hn::Max(exponents, word(1))))),
        by_bits(float_of(word(static_cast<std::uint32_t>(bits + 125)))) {}

  HWY_INLINE hn::Vec<Floats> operator()(hn::Vec<Floats> x) const {
    return hn::Mul(hn::Mul(x, by_exponent), by_bits);
  }
};

template <class Scale, bool kClamped>
struct Encoded32 {
  hn::Vec<Ints> sum;
  Scale scale;
  hn::Vec<Floats> largest;

  HWY_INLINE Encoded32(hn::Vec<Ints> from, Bits exponents, int bits)
      : sum(from),
        scale(exponents, bits),
        largest(hn::Set(Floats(), static_cast<float>((std::uint64_t{1} << bits) - 1))) {}

  HWY_INLINE void add(const Vectors& v) {
    auto scaled = scale(v.floats);
    if constexpr (kClamped) scaled = hn::Max(hn::Min(scaled, largest), hn::Neg(largest));
    sum = hn::Add(sum, nearest(scaled));
  }

  HWY_INLINE hn::Vec<Ints> integers() const { return sum; }
};

struct Integers64 {
  hn::Vec<LongWords> low, high;
};

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
HWY_INLINE hn::Vec<LongWords> nearest64(hn::Vec<HalfFloats> x) {
  return hn::Vec<LongWords>{_mm512_maskz_cvtps_epi64(0xFF, x.raw)};
}

using OneStep64 = OneStep;
using TwoSteps64 = TwoSteps;

// Whether the elements of eight leaves stay in registers until they are scaled: else they are read
// a second time, from the first cache.
template <class Integer>
constexpr bool kKept = true;

// For elements that are in registers: scaled whole, then taken apart.
struct OneStepWhole64 : OneStep {
  HWY_INLINE OneStepWhole64(Bits exponents, int bits) : OneStep(exponents, bits) {}
};
HWY_INLINE hn::Vec<LongWords> low_integers(const Vectors& v, const OneStepWhole64& scale) {
  return nearest64(hn::LowerHalf(HalfFloats(), scale(v.floats)));
}
HWY_INLINE hn::Vec<LongWords> high_integers(const Vectors& v, const OneStepWhole64& scale) {
  return nearest64(hn::UpperHalf(HalfFloats(), scale(v.floats)));
}
HWY_INLINE hn::Vec<LongWords> low_integers(const Vectors& v, const OneStep& scale) {
  return nearest64(hn::Mul(v.low_floats, hn::LowerHalf(HalfFloats(), scale.factor)));
}
HWY_INLINE hn::Vec<LongWords> high_integers(const Vectors& v, const OneStep& scale) {
  return nearest64(hn::Mul(v.high_floats, hn::UpperHalf(HalfFloats(), scale.factor)));
}
HWY_INLINE hn::Vec<LongWords> low_integers(const Vectors& v, const TwoSteps& scale) {
  return nearest64(hn::LowerHalf(HalfFloats(), scale(v.floats)));
}
HWY_INLINE hn::Vec<LongWords> high_integers(const Vectors& v, const TwoSteps& scale) {
  return nearest64(hn::UpperHalf(HalfFloats(), scale(v.floats)));
}

template <class Scale>
struct Encoded64 {
  Integers64 sums;
  Scale scale;

  HWY_INLINE Encoded64(Integers64 from, Bits exponents, int bits)
      : sums(from), scale(exponents, bits) {}

  HWY_INLINE void add(const Vectors& v) {
    sums.low = hn::Add(sums.low, low_integers(v, scale));
    sums.high = hn::Add(sums.high, high_integers(v, scale));
  }

  HWY_INLINE Integers64 integers() const { return sums; }
};
#else
struct OneStep64 : Sums {
  HWY_INLINE OneStep64(Bits exponents, int bits)
      : Sums(powers_of_two(hn::Sub(word(0), units(exponents, bits)))) {}
};
using TwoSteps64 = OneStep64;  // doubles have the range

template <class Integer>
constexpr bool kKept = sizeof(Integer) == sizeof(float);  // as doubles they fill all registers
using OneStepWhole64 = OneStep64;

// A sum of integers, modulo 2^64, in two parts of 32 bits, which are put together once, for all
// leaves. Each part has kMagic's bits besides, of which the upper one loses all.
struct Parts {
  hn::Vec<LongWords> upper, lower;

  // The integer nearest to x * scale. An element of 24 bits has either an upper part or a fraction.
  HWY_INLINE void add(Reals x, Reals scale) {
    const auto scaled = hn::Mul(x, scale);
    const auto above = hn::MulAdd(scaled, real(0x1p-32), real(kMagic));
    const auto whole = hn::Sub(above, real(kMagic));
    const auto rest = hn::Add(hn::NegMulAdd(whole, real(0x1p32), scaled), real(kMagic));
    upper = hn::Add(upper, long_words(above));
    lower = hn::Add(lower, long_words(rest));
  }

  HWY_INLINE hn::Vec<LongWords> integers(hn::Vec<LongWords> magic) const {
    return hn::Add(hn::ShiftLeft<32>(upper), hn::Sub(lower, magic));
  }
};

template <class Scale>
struct Encoded64 {
  Parts low, high;
  Scale scale;
  std::uint64_t leaves = 0;

  HWY_INLINE Encoded64(Integers64 from, Bits exponents, int bits)
      : low{hn::Zero(LongWords()), from.low},
        high{hn::Zero(LongWords()), from.high},
        scale(exponents, bits) {}

  HWY_INLINE void add(const Vectors& v) {
    low.add(v.low, scale.low);
    high.add(v.high, scale.high);
    ++leaves;
  }

  HWY_INLINE Integers64 integers() const {
    const auto magic = hn::Set(LongWords(), leaves * std::bit_cast<std::uint64_t>(kMagic));
    return {low.integers(magic), high.integers(magic)};
  }
};
#endif

// ---- integers in memory

HWY_INLINE hn::Vec<LongWords> load_long(const std::int64_t* from) {
  return hn::BitCast(LongWords(), hn::LoadU(LongInts(), from));
}
HWY_INLINE hn::Vec<Ints> load_integers(const std::int32_t* from) { return hn::LoadU(Ints(), from); }
HWY_INLINE Integers64 load_integers(const std::int64_t* from) {
  return {load_long(from), load_long(from + kDoubleLanes)};
}
HWY_INLINE void save_integers(hn::Vec<Ints> integers, std::int32_t* to) {
  hn::StoreU(integers, Ints(), to);
}
HWY_INLINE void save_integers(const Integers64& integers, std::int64_t* to) {
  hn::StoreU(hn::BitCast(LongInts(), integers.low), LongInts(), to);
  hn::StoreU(hn::BitCast(LongInts(), integers.high), LongInts(), to + kDoubleLanes);
}

template <class Integer>
HWY_INLINE auto no_integers() {
  if constexpr (sizeof(Integer) == sizeof(float)) {
    return hn::Zero(Ints());
  } else {
    return Integers64{hn::Zero(LongWords()), hn::Zero(LongWords())};
  }
}

// The sums of a tile, where they have to be in the end.
template <class Sum, class Integer>
struct EncodedTile {
  HWY_INLINE Sum begin(std::size_t i) const {
    return {no_integers<Integer>(), load_bytes(exponents + i), bits};
  }
  HWY_INLINE Sum load(std::size_t i) const {
    return {load_integers(sums + i), load_bytes(exponents + i), bits};
  }
  HWY_INLINE void save(std::size_t i, const Sum& sum) { save_integers(sum.integers(), sums + i); }

  const std::uint8_t* exponents;
  int bits;
  Integer* sums;
};

// Of elements first to first + size; exponents and sums are those of these elements.
template <Dtype kDtype, class Sum, class AnySum, class Integer, Prefetch kPrefetch = Prefetch::kAll>
HWY_INLINE void encode_tile(Leaves leaves, std::size_t first, std::size_t size,
                            const std::uint8_t* exponents, std::size_t total_leaves,
                            Integer* sums) {
  const int bits = fixed_bits<Integer>(total_leaves);
  const Range range = range_of(exponents, size);
  if (range.smallest >= bits - 1) {
    EncodedTile<Sum, Integer> tile{exponents, bits, sums};
    add_leaves<kDtype, EncodedTile<Sum, Integer>, kPrefetch>(leaves, first, size, tile);
  } else {
    EncodedTile<AnySum, Integer> tile{exponents, bits, sums};
    add_leaves<kDtype, EncodedTile<AnySum, Integer>, kPrefetch>(leaves, first, size, tile);
  }
  if (range.largest < 255) return;
  for (std::size_t i = 0; i < size; i += kLanes) {
    if (!any_special(exponents + i)) continue;
    encode_reference(leaves, kDtype, first + i, kLanes, exponents + i, total_leaves, sums + i);
  }
}

template <Dtype kDtype, class Sum, class AnySum, class Integer>
void encode_with(Leaves leaves, std::size_t count, const std::uint8_t* exponents,
                 std::size_t total_leaves, Integer* out) {
  const std::size_t in_vectors = count / kLanes * kLanes;
  for (std::size_t first = 0; first < in_vectors; first += kTile) {
    encode_tile<kDtype, Sum, AnySum>(leaves, first, std::min(kTile, in_vectors - first),
                                     exponents + first, total_leaves, out + first);
  }
  encode_reference(leaves, kDtype, in_vectors, count - in_vectors, exponents + in_vectors,
                   total_leaves, out + in_vectors);
}

// With at least as many bits as an element has, rounding cannot reach 2^bits.
template <class Integer>
bool clamped(Dtype dtype, std::size_t total_leaves) {
  return fixed_bits<Integer>(total_leaves) < format_of(dtype).precision();
}

template <Dtype kDtype>
void encode_of(Leaves leaves, std::size_t count, const std::uint8_t* exponents,
               std::size_t total_leaves, std::int32_t* out) {
  if (clamped<std::int32_t>(kDtype, total_leaves)) {
    using Sum = Encoded32<TwoSteps, true>;
    encode_with<kDtype, Sum, Sum>(leaves, count, exponents, total_leaves, out);
  } else {
    encode_with<kDtype, Encoded32<OneStep, false>, Encoded32<TwoSteps, false> >(
        leaves, count, exponents, total_leaves, out);
  }
}

template <Dtype kDtype>
void encode_of(Leaves leaves, std::size_t count, const std::uint8_t* exponents,
               std::size_t total_leaves, std::int64_t* out) {
  encode_with<kDtype, Encoded64<OneStep64>, Encoded64<TwoSteps64> >(leaves, count, exponents,
                                                                    total_leaves, out);
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

HWY_INLINE Sums to_sums(hn::Vec<Ints> sums) {
  return {hn::PromoteTo(Doubles(), hn::LowerHalf(HalfInts(), sums)),
          hn::PromoteTo(Doubles(), hn::UpperHalf(HalfInts(), sums))};
}

HWY_INLINE Sums to_sums(const Integers64& sums) {
  return {integers_to_odd(hn::BitCast(LongInts(), sums.low)),
          integers_to_odd(hn::BitCast(LongInts(), sums.high))};
}

// The nearest floats, where the processor converts at once.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
template <class Integer>
constexpr bool kToFloats = true;
HWY_INLINE hn::Vec<Floats> to_floats(const Integers64& sums) {
  const hn::Vec<HalfFloats> low{_mm512_cvtepi64_ps(sums.low.raw)};
  const hn::Vec<HalfFloats> high{_mm512_cvtepi64_ps(sums.high.raw)};
  return hn::Combine(Floats(), high, low);
}
#else
template <class Integer>
constexpr bool kToFloats = sizeof(Integer) == sizeof(float);
#endif
HWY_INLINE hn::Vec<Floats> to_floats(hn::Vec<Ints> sums) { return hn::ConvertTo(Floats(), sums); }

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
  HWY_INLINE void operator()(const Integer* sums, const std::uint8_t* bytes,
                             std::uint8_t* out) const {
    const auto integers = load_integers(sums);
    const Bits exponents = load_bytes(bytes);
    if constexpr (kMayScale) {
      if (least_ > 0 && put_normal(to_floats(integers), exponents, out)) return;
    }
    if (any_special(bytes)) {
      decode_reference(sums, bytes, 0, kLanes, total_leaves_, divisor_, kDtype, out);
    } else {
      put_rounded(integers, exponents, out);
    }
  }

  // The least exponent from which on put_scaled may be called; 0: there is none.
  int least() const { return kMayScale ? least_ : 0; }

  // A conversion and a product with a power of two: rounded once, if the result is a normal number
  // or 0. REQUIRES: exponents from least() to 254.
  template <class Integers>
  HWY_INLINE void put_scaled(const Integers& sums, Bits exponents, std::uint8_t* out) const {
    if constexpr (kMayScale) {
      const auto unit = float_of(hn::Sub(exponents, word(static_cast<std::uint32_t>(least_ - 1))));
      store(hn::BitCast(Words(), hn::Mul(to_floats(sums), unit)), out);
    }
  }

  // REQUIRES: no exponent is 255.
  template <class Integers>
  HWY_INLINE void put_rounded(const Integers& sums, Bits exponents, std::uint8_t* out) const {
    const Sums unit = powers_of_two(units(exponents, bits_));
    const Sums x = to_sums(sums);
    store_rounded<kDtype>({divide_(hn::Mul(x.low, unit.low)), divide_(hn::Mul(x.high, unit.high))},
                          out);
  }

 private:
  static constexpr bool kMayScale = kDtype == Dtype::kF32 && kToFloats<Integer>;

  // As put_scaled, for any exponents; false where the result may be another.
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

  std::size_t total_leaves_;
  std::uint32_t divisor_;
  int bits_;
  int least_ = 0;
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

// ---- all steps in one

// A vector of elements at a time: they stay in registers, or in the first cache, between the steps,
// and so do the integers until they are rounded.
template <Dtype kDtype, class Integer, class Sum, class AnySum>
class Fused {
 public:
  HWY_INLINE Fused(Leaves leaves, std::uint32_t divisor, void* out)
      : leaves_(leaves),
        divisor_(divisor),
        out_(static_cast<std::uint8_t*>(out)),
        bits_(fixed_bits<Integer>(leaves.size())),
        decode_(leaves.size(), divisor),
        least_(static_cast<std::uint32_t>(std::max(bits_ - 1, decode_.least()))) {}

  // Elements first to first + kLanes. REQUIRES: there are kLeaves leaves.
  template <std::size_t kLeaves>
  HWY_INLINE void put(std::size_t first) const {
    [[maybe_unused]] Vectors elements[kLeaves];
    Bits size = word(0);
    for (std::size_t leaf = 0; leaf < kLeaves; ++leaf) {
      const std::uint8_t* from = element<kDtype>(leaves_[leaf], first);
      prefetch(from);
      Vectors v = read<kDtype>(from);
      size = hn::Max(size, size_bits(v.floats));
      if constexpr (kKept<Integer>) {
        split(v);  // no second reading of the halves
        elements[leaf] = v;
      }
    }
    if (!hn::AllTrue(Words(), is_usual(size))) return put_unusual(first, exponent_of(size));
    const Bits exponents = hn::Max(exponent_of(size), word(least_));
    Sum sum(no_integers<Integer>(), exponents, bits_);
    for (std::size_t leaf = 0; leaf < kLeaves; ++leaf) {
      if constexpr (kKept<Integer>) {
        sum.add(elements[leaf]);
      } else {
        sum.add(read<kDtype>(element<kDtype>(leaves_[leaf], first)));
      }
    }
    if (decode_.least() > 0) {
      decode_.put_scaled(sum.integers(), exponents, result(first));
    } else {
      decode_.put_rounded(sum.integers(), exponents, result(first));
    }
  }

 private:
  // With an exponent from least_ to 254, or only zeros, which any scale leaves what they are.
  HWY_INLINE hn::Mask<Words> is_usual(Bits size) const {
    const auto above = hn::Sub(size, word(least_ << 23));
    return hn::Or(hn::Lt(above, word((255 - least_) << 23)), hn::Eq(size, word(0)));
  }

  HWY_NOINLINE void put_unusual(std::size_t first, Bits exponents) const {
    if (!hn::AllFalse(Words(), hn::Eq(exponents, word(255)))) {
      fixed_reference<Integer>(leaves_, kDtype, first, kLanes, divisor_, out_);
      return;
    }
    AnySum sum(no_integers<Integer>(), exponents, bits_);
    for (const void* leaf : leaves_) sum.add(read<kDtype>(element<kDtype>(leaf, first)));
    decode_.put_rounded(sum.integers(), exponents, result(first));
  }

  HWY_INLINE std::uint8_t* result(std::size_t first) const {
    return out_ + first * element_bytes(kDtype);
  }

  Leaves leaves_;
  std::uint32_t divisor_;
  std::uint8_t* out_;
  int bits_;
  Decoder<kDtype, Integer> decode_;
  std::uint32_t least_;
};

template <Dtype kDtype, class Integer, class Sum, class AnySum>
void fixed_of_eight(Leaves leaves, std::size_t in_vectors, std::uint32_t divisor, void* out) {
  const Fused<kDtype, Integer, Sum, AnySum> fused(leaves, divisor, out);
  for (std::size_t i = 0; i < in_vectors; i += kLanes) fused.template put<8>(i);
}

// Tile by tile, which stays in the second cache between the steps.
template <Dtype kDtype, class Integer, class Sum, class AnySum>
void fixed_in_tiles(Leaves leaves, std::size_t in_vectors, std::uint32_t divisor, void* out) {
  constexpr std::size_t kPart = 1024;
  const Decoder<kDtype, Integer> decode(leaves.size(), divisor);
  std::uint8_t exponents[kPart];
  Integer sums[kPart];
  for (std::size_t first = 0; first < in_vectors; first += kPart) {
    const std::size_t size = std::min(kPart, in_vectors - first);
    LargestTile tile{exponents};
    add_leaves<kDtype, LargestTile, Prefetch::kEven>(leaves, first, size, tile);
    encode_tile<kDtype, Sum, AnySum, Integer, Prefetch::kOdd>(leaves, first, size, exponents,
                                                              leaves.size(), sums);
    auto* to = static_cast<std::uint8_t*>(out) + first * element_bytes(kDtype);
    for (std::size_t i = 0; i < size; i += kLanes) {
      decode(sums + i, exponents + i, to + i * element_bytes(kDtype));
    }
  }
}

template <Dtype kDtype, class Integer, class Sum, class AnySum, class SumOfEight = Sum>
void fixed_with(Leaves leaves, std::size_t count, std::uint32_t divisor, void* out) {
  const std::size_t in_vectors = count / kLanes * kLanes;
  if (leaves.size() == 8) {
    fixed_of_eight<kDtype, Integer, SumOfEight, AnySum>(leaves, in_vectors, divisor, out);
  } else {
    fixed_in_tiles<kDtype, Integer, Sum, AnySum>(leaves, in_vectors, divisor, out);
  }
  fixed_reference<Integer>(leaves, kDtype, in_vectors, count - in_vectors, divisor, out);
}

template <Dtype kDtype, class Integer>
void fixed_of(Leaves leaves, std::size_t count, std::uint32_t divisor, void* out) {
  if constexpr (sizeof(Integer) > sizeof(float)) {
    fixed_with<kDtype, Integer, Encoded64<OneStep64>, Encoded64<TwoSteps64>,
               Encoded64<OneStepWhole64> >(leaves, count, divisor, out);
  } else if (clamped<Integer>(kDtype, leaves.size())) {
    fixed_with<kDtype, Integer, Encoded32<OneStep, true>, Encoded32<TwoSteps, true> >(leaves, count,
                                                                                      divisor, out);
  } else {
    fixed_with<kDtype, Integer, Encoded32<OneStep, false>, Encoded32<TwoSteps, false> >(
        leaves, count, divisor, out);
  }
}

template <class Integer>
void fixed_vectors(Leaves leaves, Dtype dtype, std::size_t count, std::uint32_t divisor,
                   void* out) {
  switch (dtype) {
    case Dtype::kBF16:
      return fixed_of<Dtype::kBF16, Integer>(leaves, count, divisor, out);
    case Dtype::kF16:
      return fixed_of<Dtype::kF16, Integer>(leaves, count, divisor, out);
    default:
      return fixed_of<Dtype::kF32, Integer>(leaves, count, divisor, out);
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

void fixed32_vectors(Leaves leaves, Dtype dtype, std::size_t count, std::uint32_t divisor,
                     void* out) {
  fixed_vectors<std::int32_t>(leaves, dtype, count, divisor, out);
}

void fixed64_vectors(Leaves leaves, Dtype dtype, std::size_t count, std::uint32_t divisor,
                     void* out) {
  fixed_vectors<std::int64_t>(leaves, dtype, count, divisor, out);
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
HWY_EXPORT(fixed32_vectors);
HWY_EXPORT(fixed64_vectors);

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

template <class Integer>
void fixed_kernel(Leaves leaves, Dtype dtype, std::size_t count, std::uint32_t divisor, void* out) {
  const base::DefaultFloatEnvironment environment;
  if (divisor > kKernelDivisorMax) {
    fixed_reference<Integer>(leaves, dtype, 0, count, divisor, out);
  } else if constexpr (std::is_same_v<Integer, std::int32_t>) {
    PRESUM_SIMD_DISPATCH(fixed32_vectors)(leaves, dtype, count, divisor, out);
  } else {
    PRESUM_SIMD_DISPATCH(fixed64_vectors)(leaves, dtype, count, divisor, out);
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
template void fixed_kernel<std::int32_t>(Leaves, Dtype, std::size_t, std::uint32_t, void*);
template void fixed_kernel<std::int64_t>(Leaves, Dtype, std::size_t, std::uint32_t, void*);

}  // namespace presum::reduce

#endif  // HWY_ONCE
