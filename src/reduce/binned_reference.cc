// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "reduce/binned.h"
#include "reduce/long_sum.h"

namespace presum::reduce {
namespace {

BinnedState get(const Binned& sum, std::size_t i) { return {sum.top[i], sum.high[i], sum.low[i]}; }

void set(const Binned& sum, std::size_t i, const BinnedState& s) {
  sum.top[i] = s.top;
  sum.high[i] = s.high;
  sum.low[i] = s.low;
}

void add_digits(LongSum& sum, std::int64_t digits, int shift) {
  const bool negative = digits < 0;
  const auto bits = static_cast<std::uint64_t>(digits);
  sum.add(negative, negative ? ~bits + 1 : bits, shift);
}

std::uint64_t decoded(const BinnedState& s, std::uint32_t divisor, Format format) {
  if (s.top == kSpecialBin) return special_bits(s, format);
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
  for (std::size_t i = 0; i < count; ++i) set(into, i, merged(get(into, i), get(from, i)));
}

}  // namespace presum::reduce
