// SPDX-License-Identifier: Apache-2.0
#include "reduce/fixed.h"
#include "reduce/long_sum.h"

namespace presum::reduce {
namespace {

// The exponent byte of fp32.
std::uint8_t exponent_of(const Element& e, Format format) {
  if (e.kind != Element::Kind::kFinite) return 255;
  if (e.mantissa == 0) return 0;
  const int leading = leading_bit(e.mantissa) + e.shift + format.unit();
  return static_cast<std::uint8_t>(std::max(leading + 127, 0));
}

// mantissa * 2^shift to nearest even, or, beyond 64 bits, the largest integer.
std::uint64_t shift_and_round(std::uint64_t mantissa, int shift) {
  if (mantissa == 0) return 0;
  if (shift > std::countl_zero(mantissa)) return ~std::uint64_t{0};
  if (shift >= 0) return mantissa << shift;
  if (shift < -62) return 0;
  const std::uint64_t whole = mantissa >> -shift;
  const std::uint64_t rest = mantissa - (whole << -shift);
  const std::uint64_t half = std::uint64_t{1} << (-shift - 1);
  return whole + (rest > half || (rest == half && (whole & 1) != 0) ? 1 : 0);
}

std::int64_t encode(const Element& e, Format format, std::uint8_t exponent, int bits) {
  if (exponent == 255) {
    if (e.kind == Element::Kind::kNan) return kPlus + kMinus;
    if (e.kind == Element::Kind::kInfinite) return e.negative ? kMinus : kPlus;
    return 0;
  }
  const std::uint64_t largest = (std::uint64_t{1} << bits) - 1;
  const int shift = e.shift + format.unit() - fixed_unit(exponent, bits);
  const auto size =
      static_cast<std::int64_t>(std::min(shift_and_round(e.mantissa, shift), largest));
  return e.negative ? -size : size;
}

Specials specials_of(std::int64_t counts) {
  return {.nan = false, .plus = counts % kMinus != 0, .minus = counts / kMinus != 0};
}

std::uint64_t decode(std::int64_t sum, int unit, std::uint32_t divisor, Format format) {
  const bool negative = sum < 0;
  const auto size =
      negative ? ~static_cast<std::uint64_t>(sum) + 1 : static_cast<std::uint64_t>(sum);
  LongSum integer;
  integer.add(negative, size, 0);
  return integer.round(divisor, unit, format);
}

}  // namespace

void exponents_reference(Leaves leaves, Dtype dtype, std::size_t first, std::size_t count,
                         std::uint8_t* exponents) {
  for (std::size_t i = first; i < first + count; ++i) {
    exponents[i] = 0;
    for (const void* leaf : leaves) {
      const Element e = element_at(leaf, i, dtype);
      exponents[i] = std::max(exponents[i], exponent_of(e, format_of(dtype)));
    }
  }
}

template <class Integer>
void encode_reference(Leaves leaves, Dtype dtype, std::size_t first, std::size_t count,
                      const std::uint8_t* exponents, std::size_t total_leaves, Integer* out) {
  const int bits = fixed_bits<Integer>(total_leaves);
  for (std::size_t i = first; i < first + count; ++i) {
    std::int64_t sum = 0;
    for (const void* leaf : leaves) {
      sum += encode(element_at(leaf, i, dtype), format_of(dtype), exponents[i], bits);
    }
    out[i] = static_cast<Integer>(sum);
  }
}

template <class Integer>
void decode_reference(const Integer* sums, const std::uint8_t* exponents, std::size_t first,
                      std::size_t count, std::size_t total_leaves, std::uint32_t divisor,
                      Dtype dtype, void* out) {
  const int bits = fixed_bits<Integer>(total_leaves);
  const Format format = format_of(dtype);
  for (std::size_t i = first; i < first + count; ++i) {
    const bool special = exponents[i] == 255 && sums[i] != 0;
    set_element_bits(out, i, dtype,
                     special ? specials_of(sums[i]).bits(format)
                             : decode(sums[i], fixed_unit(exponents[i], bits), divisor, format));
  }
}

template void encode_reference(Leaves, Dtype, std::size_t, std::size_t, const std::uint8_t*,
                               std::size_t, std::int32_t*);
template void encode_reference(Leaves, Dtype, std::size_t, std::size_t, const std::uint8_t*,
                               std::size_t, std::int64_t*);
template void decode_reference(const std::int32_t*, const std::uint8_t*, std::size_t, std::size_t,
                               std::size_t, std::uint32_t, Dtype, void*);
template void decode_reference(const std::int64_t*, const std::uint8_t*, std::size_t, std::size_t,
                               std::size_t, std::uint32_t, Dtype, void*);

}  // namespace presum::reduce
