// SPDX-License-Identifier: Apache-2.0
#include "reduce/exact.h"
#include "reduce/long_sum.h"

namespace presum::reduce {

std::uint64_t exact_sum(Leaves leaves, Dtype dtype, std::size_t i, std::uint32_t divisor) {
  LongSum sum;
  Specials specials;
  for (const void* leaf : leaves) {
    const Element e = element_at(leaf, i, dtype);
    specials.add(e);
    sum.add(e.negative, e.mantissa, e.shift);
  }
  const Format format = format_of(dtype);
  return specials.any() ? specials.bits(format) : sum.round(divisor, format.unit(), format);
}

void exact_reference(Leaves leaves, Dtype dtype, std::size_t first, std::size_t count,
                     std::uint32_t divisor, void* out) {
  for (std::size_t i = first; i < first + count; ++i) {
    set_element_bits(out, i, dtype, exact_sum(leaves, dtype, i, divisor));
  }
}

}  // namespace presum::reduce
