// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "base/testing.h"
#include "presum/reduce.h"

// Buffers of every dtype, and an oracle that shares no code with the functions under test: sums are
// integers of 2,304 bits, and the nearest number of a format is found by comparison with its
// numbers.
namespace presum::reduce {

// ---- formats

using base::bits_near;
using base::Buffer;
using base::infinity_bits;
using base::kDtypes;
using base::layout_of;
using base::name_of;
using base::sign_bit;

// The smallest positive number is 2^unit.
inline int unit_of(Dtype dtype) {
  const auto [exponent_bits, mantissa_bits] = layout_of(dtype);
  return 2 - (1 << (exponent_bits - 1)) - mantissa_bits;
}
inline std::uint64_t quiet_nan_bits(Dtype dtype) {
  return infinity_bits(dtype) | (std::uint64_t{1} << (layout_of(dtype).mantissa_bits - 1));
}
inline bool is_nan(std::uint64_t bits, Dtype dtype) {
  return (bits & ~sign_bit(dtype)) > infinity_bits(dtype);
}
inline bool is_infinite(std::uint64_t bits, Dtype dtype) {
  return (bits & ~sign_bit(dtype)) == infinity_bits(dtype);
}
inline bool is_finite(std::uint64_t bits, Dtype dtype) {
  return (bits & ~sign_bit(dtype)) < infinity_bits(dtype);
}

// A finite number as whole * 2^shift times the smallest positive number.
struct Whole {
  std::uint64_t whole;
  int shift;
};
inline Whole whole_of(std::uint64_t bits, Dtype dtype) {
  const int mantissa_bits = layout_of(dtype).mantissa_bits;
  const std::uint64_t size = bits & ~sign_bit(dtype);
  const std::uint64_t hidden = std::uint64_t{1} << mantissa_bits;
  const auto exponent = static_cast<int>(size / hidden);
  if (exponent == 0) return {size, 0};
  return {hidden + size % hidden, exponent - 1};
}

inline double value_of(std::uint64_t bits, Dtype dtype) {
  const double sign = (bits & sign_bit(dtype)) != 0 ? -1 : 1;
  if (is_nan(bits, dtype)) return std::nan("");
  if (is_infinite(bits, dtype)) return sign * HUGE_VAL;
  const Whole w = whole_of(bits, dtype);
  return sign * std::ldexp(static_cast<double>(w.whole), w.shift + unit_of(dtype));
}

// ---- buffers

// Leaves and their addresses.
struct LeafSet {
  Dtype dtype;
  std::vector<Buffer> buffers;

  std::size_t count() const { return buffers.empty() ? 0 : buffers[0].count(); }
  std::vector<const void*> pointers() const {
    std::vector<const void*> list;
    for (const Buffer& buffer : buffers) list.push_back(buffer.data());
    return list;
  }
  std::vector<std::uint64_t> element(std::size_t i) const {
    std::vector<std::uint64_t> bits;
    for (const Buffer& buffer : buffers) bits.push_back(buffer.bits(i));
    return bits;
  }
};

// Kinds of element values.
enum class Kind {
  kGaussian,       // of moderate size
  kWide,           // exponents over 60 binary places
  kAnyBits,        // any finite bit pattern
  kDenormals,      // only denormals and zeros
  kSomeDenormals,  // Gaussian, one in twenty a denormal
  kCancelling,     // most leaves cancel another leaf
  kHuge,           // near the largest number
  kTies,           // few bits, half an ulp of the result apart
  kZeros,          // of both signs
  kNotFinite,      // anything; one in ten is an infinity or NaN
};
inline constexpr Kind kKinds[] = {
    Kind::kGaussian,   Kind::kWide, Kind::kAnyBits, Kind::kDenormals, Kind::kSomeDenormals,
    Kind::kCancelling, Kind::kHuge, Kind::kTies,    Kind::kZeros,     Kind::kNotFinite};

using Random = std::mt19937_64;

inline std::uint64_t random_bits(Kind kind, Dtype dtype, Random& random) {
  const std::uint64_t any = random() & (sign_bit(dtype) | (sign_bit(dtype) - 1));
  const std::uint64_t sign = any & sign_bit(dtype);
  const std::uint64_t hidden = std::uint64_t{1} << layout_of(dtype).mantissa_bits;
  const double gauss = std::normal_distribution<double>(0, 1)(random);
  switch (kind) {
    case Kind::kGaussian:
    case Kind::kCancelling:
      return bits_near(gauss, dtype);
    case Kind::kWide:
      return bits_near(std::ldexp(gauss, static_cast<int>(random() % 60) - 30), dtype);
    case Kind::kAnyBits:
      return is_finite(any, dtype) ? any : sign;
    case Kind::kDenormals:
      return random() % 4 == 0 ? sign : sign | (any & (hidden - 1));
    case Kind::kSomeDenormals:
      return random() % 20 == 0 ? sign | (any & (hidden - 1)) : bits_near(gauss, dtype);
    case Kind::kHuge:
      return infinity_bits(dtype) - 1 - (any & (4 * hidden - 1)) % (3 * hidden) + sign;
    case Kind::kTies: {
      const int places = layout_of(dtype).mantissa_bits + 1;
      constexpr int kSteps[] = {0, 1, 2};
      const double ulp = std::ldexp(1.0, -places * kSteps[random() % 3]);
      return bits_near(std::copysign(ulp * static_cast<double>(1 + random() % 3), gauss), dtype);
    }
    case Kind::kZeros:
      return sign;
    case Kind::kNotFinite:
      return random() % 10 == 0 ? sign | (infinity_bits(dtype) + (random() % 3 == 0 ? 1 : 0))
                                : (is_finite(any, dtype) ? any : sign);
  }
  return 0;
}

inline LeafSet random_leaves(Kind kind, Dtype dtype, std::size_t leaves, std::size_t count,
                             std::size_t offset = 0) {
  Random random(leaves * 1000003 + count * 64 + offset + static_cast<std::size_t>(kind) * 7919);
  LeafSet set{dtype, {}};
  for (std::size_t leaf = 0; leaf < leaves; ++leaf) {
    Buffer buffer(dtype, count, offset == 0 ? 0 : offset + leaf % 3);
    for (std::size_t i = 0; i < count; ++i) {
      const bool copied = kind == Kind::kCancelling && leaf % 2 == 1 && random() % 8 != 0;
      buffer.set_bits(i, copied ? set.buffers[leaf - 1].bits(i) ^ sign_bit(dtype)
                                : random_bits(kind, dtype, random));
    }
    set.buffers.push_back(std::move(buffer));
  }
  return set;
}

// ---- the oracle

// A natural number below 2^2304.
class Natural {
 public:
  Natural() = default;
  Natural(std::uint64_t value, int shift) { add(value, shift); }

  void add(std::uint64_t value, int shift) {
    for (int bit = 0; bit < 64; bit += 16) {
      add_part((value >> bit) & 0xFFFF, static_cast<std::size_t>(shift + bit));
    }
  }
  Natural times(std::uint64_t factor) const {
    Natural product;
    for (std::size_t i = 0; i < kWords; ++i) {
      const std::uint64_t low = (words_[i] & 0xFFFF) * factor;
      const std::uint64_t high = (words_[i] >> 16) * factor;
      product.add(low, static_cast<int>(32 * i));
      product.add(high, static_cast<int>(32 * i + 16));
    }
    return product;
  }
  // REQUIRES: other <= *this.
  Natural minus(const Natural& other) const {
    Natural difference;
    std::int64_t borrow = 0;
    for (std::size_t i = 0; i < kWords; ++i) {
      const std::int64_t word = std::int64_t{words_[i]} - std::int64_t{other.words_[i]} + borrow;
      difference.words_[i] = static_cast<std::uint32_t>(word);
      borrow = word < 0 ? -1 : 0;
    }
    return difference;
  }
  int compare(const Natural& other) const {
    for (std::size_t i = kWords; i-- > 0;) {
      if (words_[i] != other.words_[i]) return words_[i] < other.words_[i] ? -1 : 1;
    }
    return 0;
  }

 private:
  static constexpr std::size_t kWords = 74;

  void add_part(std::uint64_t value, std::size_t shift) {
    if (value == 0) return;
    std::uint64_t carry = value << (shift % 32);
    for (std::size_t i = shift / 32; carry != 0 && i < kWords; ++i) {
      carry += words_[i];
      words_[i] = static_cast<std::uint32_t>(carry);
      carry >>= 32;
    }
  }

  std::array<std::uint32_t, kWords> words_{};
};

// Returns the bits nearest to ±size / divisor smallest positive numbers, ties to even.
inline std::uint64_t nearest(bool negative, const Natural& size, std::uint32_t divisor,
                             Dtype dtype) {
  if (size.compare({}) == 0) return 0;
  const auto scaled = [&](std::uint64_t bits) {
    const Whole w = whole_of(bits, dtype);
    return Natural(w.whole, w.shift).times(divisor);
  };
  // the number that would follow the largest one
  std::uint64_t low = 0, high = infinity_bits(dtype);
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    (scaled(middle).compare(size) <= 0 ? low : high) = middle;
  }
  const Natural below = scaled(low);
  const Natural next = scaled(high);
  const int side = next.minus(size.compare(next) <= 0 ? size : next).compare(size.minus(below));
  const bool up_wins = side < 0 || (side == 0 && low % 2 == 1) || size.compare(next) >= 0;
  return (up_wins ? high : low) | (negative ? sign_bit(dtype) : 0);
}

// Non-finite values determine the result.
inline bool special(const std::vector<std::uint64_t>& leaves, Dtype dtype, std::uint64_t& result) {
  bool nan = false, plus = false, minus = false;
  for (const std::uint64_t bits : leaves) {
    nan = nan || is_nan(bits, dtype);
    plus = plus || bits == infinity_bits(dtype);
    minus = minus || bits == (infinity_bits(dtype) | sign_bit(dtype));
  }
  result = infinity_bits(dtype) | (minus ? sign_bit(dtype) : 0);
  if (nan || (plus && minus)) result = quiet_nan_bits(dtype);
  return nan || plus || minus;
}

inline std::uint64_t exact_oracle(const std::vector<std::uint64_t>& leaves, Dtype dtype,
                                  std::uint32_t divisor) {
  std::uint64_t result = 0;
  if (special(leaves, dtype, result)) return result;
  Natural plus, minus;
  for (const std::uint64_t bits : leaves) {
    const Whole w = whole_of(bits, dtype);
    ((bits & sign_bit(dtype)) != 0 ? minus : plus).add(w.whole, w.shift);
  }
  const bool negative = plus.compare(minus) < 0;
  return nearest(negative, negative ? minus.minus(plus) : plus.minus(minus), divisor, dtype);
}

}  // namespace presum::reduce
