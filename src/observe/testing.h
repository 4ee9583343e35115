// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>

#include "base/testing.h"

// Buffers of every dtype.
namespace presum::observe {

using base::Buffer;
using base::infinity_bits;
using base::kDtypes;
using base::name_of;
using base::sign_bit;

inline std::uint64_t nan_bits(Dtype dtype) { return infinity_bits(dtype) | 1; }
inline std::uint64_t largest_bits(Dtype dtype) { return infinity_bits(dtype) - 1; }

// Any bits but those of NaN and infinity; now and then zeros of both signs and denormals.
inline std::uint64_t finite_bits(Dtype dtype, std::mt19937_64& random) {
  const std::uint64_t bits = random();
  const std::uint64_t mask = infinity_bits(dtype);
  switch (random() % 16) {
    case 0:
      return bits & sign_bit(dtype);
    case 1:
      return bits & ~mask;
    default:
      return (bits & mask) == mask ? bits & ~(mask & (mask << 1)) : bits;
  }
}

inline Buffer finite_buffer(Dtype dtype, std::size_t count, std::size_t offset = 0) {
  std::mt19937_64 random(count * 8 + offset);
  Buffer buffer(dtype, count, offset);
  for (std::size_t i = 0; i < count; ++i) buffer.set_bits(i, finite_bits(dtype, random));
  return buffer;
}

inline bool same_bits(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

inline bool same_or_both_nan(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

}  // namespace presum::observe
