// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>

#include "base/testing.h"
#include "observe/fingerprint.h"
#include "observe/gradient_pass.h"

// Buffers of every dtype, and the expected results of a pass over them.
namespace presum::observe {

using base::Buffer;
using base::infinity_bits;
using base::kDtypes;
using base::name_of;
using base::sign_bit;

inline std::uint64_t nan_bits(Dtype dtype) { return infinity_bits(dtype) | 1; }
inline std::uint64_t largest_bits(Dtype dtype) { return infinity_bits(dtype) - 1; }

// Any bits but those of NaN and infinity; occasionally zeros of both signs and denormals.
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

// ---- the fingerprint and the pass, as defined

// A 32-bit word of the fingerprint: one per element, two for f64.
inline std::uint32_t fingerprint_word(const void* data, Dtype dtype, std::size_t j) {
  const std::size_t width = std::min(element_bytes(dtype), sizeof(std::uint32_t));
  std::uint32_t word = 0;
  std::memcpy(&word, static_cast<const char*>(data) + j * width, width);
  return word;
}

inline std::uint64_t fingerprint_reference(const void* data, std::size_t count, Dtype dtype) {
  const std::size_t words_per_element = dtype == Dtype::kF64 ? 2 : 1;
  std::uint64_t fingerprint = 0;
  for (std::size_t begin = 0; begin < count; begin += kFingerprintBlock) {
    const std::size_t length = std::min(kFingerprintBlock, count - begin);
    const std::size_t first = begin * words_per_element, words = length * words_per_element;
    std::uint64_t sum = 0;
    for (std::size_t j = 0; j < words; j += 2) {
      const std::uint32_t left = fingerprint_word(data, dtype, first + j) + kFingerprintKey[j];
      const std::uint32_t partner =
          j + 1 < words ? fingerprint_word(data, dtype, first + j + 1) : 0;
      const std::uint32_t right = partner + kFingerprintKey[j + 1];
      sum += static_cast<std::uint64_t>(left) * right;
    }
    fingerprint += fingerprint_of_block(sum, begin / kFingerprintBlock, length);
  }
  return fingerprint;
}

// gradient_pass in plain code.
inline GradientSums gradient_pass_reference(const void* data, std::size_t count, Dtype dtype,
                                            SketchSpan sketch) {
  sketch_part(data, count, dtype, 0, sketch);
  GradientSums sums = plain_norm(data, count, dtype);
  sums.fingerprint = fingerprint_reference(data, count, dtype);
  return sums;
}

}  // namespace presum::observe
