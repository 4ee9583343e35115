// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "reduce/binned.h"
#include "reduce/long_sum.h"

namespace presum::reduce {
namespace {

struct State {
  std::uint8_t top;
  std::int64_t high, low;
};

State get(const Binned& sum, std::size_t i) { return {sum.top[i], sum.high[i], sum.low[i]}; }

void set(const Binned& sum, std::size_t i, const State& s) {
  sum.top[i] = s.top;
  sum.high[i] = s.high;
  sum.low[i] = s.low;
}

State raised(const State& s, std::uint8_t to) {
  if (to <= s.top) return s;
  return {to, 0, to == s.top + 1 ? s.high : 0};
}

std::uint8_t bin_of(const Element& e, Format format) {
  if (e.kind != Element::Kind::kFinite) return kSpecialBin;
  if (e.mantissa == 0) return 0;
  const int leading = leading_bit(e.mantissa) + e.shift + format.unit();
  return static_cast<std::uint8_t>((leading - bin_unit(1)) / kBinBits + 1);
}

// The element's bits in a bin; it has none in higher ones.
std::int64_t digit_of(const Element& e, Format format, int bin) {
  const int shift = e.shift + format.unit() - bin_unit(bin);
  if (shift >= kBinBits || shift <= -64) return 0;
  const std::uint64_t bits = shift >= 0 ? e.mantissa << shift : e.mantissa >> -shift;
  const auto digit = static_cast<std::int64_t>(bits & ((std::uint64_t{1} << kBinBits) - 1));
  return e.negative ? -digit : digit;
}

State with(const State& before, const Element& e, Format format) {
  State s = raised(before, bin_of(e, format));
  if (s.top == kSpecialBin) {
    const bool nan = e.kind == Element::Kind::kNan;
    const bool infinite = e.kind == Element::Kind::kInfinite;
    s.high += nan || (infinite && !e.negative) ? 1 : 0;
    s.low += nan || (infinite && e.negative) ? 1 : 0;
  } else {
    s.high += digit_of(e, format, s.top);
    s.low += digit_of(e, format, s.top - 1);
  }
  return s;
}

void add_digits(LongSum& sum, std::int64_t digits, int shift) {
  const bool negative = digits < 0;
  const auto bits = static_cast<std::uint64_t>(digits);
  sum.add(negative, negative ? ~bits + 1 : bits, shift);
}

std::uint64_t decoded(const State& s, std::uint32_t divisor, Format format) {
  if (s.top == kSpecialBin) {
    const Specials specials{.nan = false, .plus = s.high != 0, .minus = s.low != 0};
    return specials.any() ? specials.bits(format) : 0;
  }
  LongSum sum;
  add_digits(sum, s.high, kBinBits);
  add_digits(sum, s.low, 0);
  return sum.round(divisor, bin_unit(s.top - 1), format);
}

}  // namespace

void binned_add_reference(const Binned& sum, std::size_t first, std::size_t count, const void* leaf,
                          Dtype dtype) {
  for (std::size_t i = first; i < first + count; ++i) {
    set(sum, i, with(get(sum, i), element_at(leaf, i, dtype), format_of(dtype)));
  }
}

void binned_decode_reference(const Binned& sum, std::size_t first, std::size_t count,
                             std::uint32_t divisor, Dtype dtype, void* out) {
  for (std::size_t i = first; i < first + count; ++i) {
    set_element_bits(out, i, dtype, decoded(get(sum, i), divisor, format_of(dtype)));
  }
}

void binned_raise_all(const Binned& sum, std::size_t count, const std::uint8_t* top) {
  for (std::size_t i = 0; i < count; ++i) set(sum, i, raised(get(sum, i), top[i]));
}

void binned_merge_all(const Binned& into, const Binned& from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint8_t top = std::max(into.top[i], from.top[i]);
    const State a = raised(get(into, i), top);
    const State b = raised(get(from, i), top);
    set(into, i, {top, a.high + b.high, a.low + b.low});
  }
}

}  // namespace presum::reduce
