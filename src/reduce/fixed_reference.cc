// SPDX-License-Identifier: Apache-2.0
#include "reduce/fixed.h"
#include "reduce/long_sum.h"

namespace presum::reduce {
namespace {

std::uint64_t decode(std::int64_t sum, int unit, std::uint32_t divisor, Format format) {
  const bool negative = sum < 0;
  const auto size =
      negative ? ~static_cast<std::uint64_t>(sum) + 1 : static_cast<std::uint64_t>(sum);
  LongSum integer;
  integer.add(negative, size, 0);
  return integer.round(divisor, unit, format);
}

// The largest of element i.
std::uint8_t exponent_at(Leaves leaves, std::size_t i, Dtype dtype) {
  std::uint8_t largest = 0;
  for (const void* leaf : leaves) {
    largest = std::max(largest, exponent_of(element_at(leaf, i, dtype), format_of(dtype)));
  }
  return largest;
}

std::int64_t sum_at(Leaves leaves, std::size_t i, Dtype dtype, std::uint8_t exponent, int bits) {
  std::int64_t sum = 0;
  for (const void* leaf : leaves) {
    sum += encode(element_at(leaf, i, dtype), format_of(dtype), exponent, bits);
  }
  return sum;
}

std::uint64_t result_of(std::int64_t sum, std::uint8_t exponent, int bits, std::uint32_t divisor,
                        Format format) {
  if (exponent == 255 && sum != 0) return counted(sum).bits(format);
  return decode(sum, fixed_unit(exponent, bits), divisor, format);
}

}  // namespace

void exponents_reference(Leaves leaves, Dtype dtype, std::size_t first, std::size_t count,
                         std::uint8_t* exponents) {
  for (std::size_t i = 0; i < count; ++i) exponents[i] = exponent_at(leaves, first + i, dtype);
}

template <class Integer>
void encode_reference(Leaves leaves, Dtype dtype, std::size_t first, std::size_t count,
                      const std::uint8_t* exponents, std::size_t total_leaves, Integer* out) {
  const int bits = fixed_bits<Integer>(total_leaves);
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = static_cast<Integer>(sum_at(leaves, first + i, dtype, exponents[i], bits));
  }
}

template <class Integer>
void decode_reference(const Integer* sums, const std::uint8_t* exponents, std::size_t first,
                      std::size_t count, std::size_t total_leaves, std::uint32_t divisor,
                      Dtype dtype, void* out) {
  const int bits = fixed_bits<Integer>(total_leaves);
  for (std::size_t i = first; i < first + count; ++i) {
    set_element_bits(out, i, dtype,
                     result_of(sums[i], exponents[i], bits, divisor, format_of(dtype)));
  }
}

template <class Integer>
void fixed_reference(Leaves leaves, Dtype dtype, std::size_t first, std::size_t count,
                     std::uint32_t divisor, void* out) {
  const int bits = fixed_bits<Integer>(leaves.size());
  for (std::size_t i = first; i < first + count; ++i) {
    const std::uint8_t exponent = exponent_at(leaves, i, dtype);
    const std::int64_t sum = sum_at(leaves, i, dtype, exponent, bits);
    set_element_bits(out, i, dtype, result_of(sum, exponent, bits, divisor, format_of(dtype)));
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
template void fixed_reference<std::int32_t>(Leaves, Dtype, std::size_t, std::size_t, std::uint32_t,
                                            void*);
template void fixed_reference<std::int64_t>(Leaves, Dtype, std::size_t, std::size_t, std::uint32_t,
                                            void*);

}  // namespace presum::reduce
