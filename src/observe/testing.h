// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "presum/dtype.h"

// Buffers of every dtype, given by their bits.
namespace presum::observe {

inline constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kF64, Dtype::kBF16, Dtype::kF16};
inline const char* dtype_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return "F32";
    case Dtype::kF64:
      return "F64";
    case Dtype::kBF16:
      return "BF16";
    case Dtype::kF16:
      return "F16";
  }
  return "";
}

struct Format {
  int exponent_bits, mantissa_bits;
};

constexpr Format format_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64:
      return {11, 52};
    case Dtype::kF32:
      return {8, 23};
    case Dtype::kBF16:
      return {8, 7};
    case Dtype::kF16:
      return {5, 10};
  }
  return {};
}

// A buffer of elements given by their bits, at any byte offset.
class Buffer {
 public:
  Buffer(Dtype dtype, std::size_t count, std::size_t offset = 0)
      : dtype_(dtype), count_(count), offset_(offset), bytes_(count * width() + offset) {}

  const void* data() const { return bytes_.data() + offset_; }
  std::size_t count() const { return count_; }
  Dtype dtype() const { return dtype_; }

  void set_bits(std::size_t i, std::uint64_t bits) {
    std::memcpy(&bytes_[offset_ + i * width()], &bits, width());
  }

  void flip_bit(std::size_t bit) {
    bytes_[offset_ + bit / 8] =
        static_cast<unsigned char>(bytes_[offset_ + bit / 8] ^ (1U << bit % 8));
  }

 private:
  std::size_t width() const { return element_bytes(dtype_); }

  Dtype dtype_;
  std::size_t count_, offset_;
  std::vector<unsigned char> bytes_;
};

inline std::uint64_t exponent_mask(Dtype dtype) {
  const Format f = format_of(dtype);
  return ((std::uint64_t{1} << f.exponent_bits) - 1) << f.mantissa_bits;
}

inline std::uint64_t infinity_bits(Dtype dtype) { return exponent_mask(dtype); }
inline std::uint64_t nan_bits(Dtype dtype) { return exponent_mask(dtype) | 1; }
inline std::uint64_t largest_bits(Dtype dtype) { return exponent_mask(dtype) - 1; }
inline std::uint64_t sign_bit(Dtype dtype) {
  return std::uint64_t{1} << (8 * element_bytes(dtype) - 1);
}

// Any bits but those of NaN and infinity; now and then zeros of both signs and denormals.
inline std::uint64_t finite_bits(Dtype dtype, std::mt19937_64& random) {
  const std::uint64_t bits = random();
  const std::uint64_t mask = exponent_mask(dtype);
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
