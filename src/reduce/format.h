// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/host_device.h"
#include "presum/dtype.h"

// Floating-point formats, by their bits. Pure functions, on devices too.
namespace presum::reduce {

#ifdef __CUDACC_RTC__
using Wide = unsigned __int128;
using WideInt = __int128;
#else
__extension__ using Wide = unsigned __int128;
__extension__ using WideInt = __int128;
#endif

struct Format {
  int exponent_bits, mantissa_bits;

  constexpr int precision() const { return mantissa_bits + 1; }
  // The smallest positive number is 2^unit().
  constexpr int unit() const { return 2 - (1 << (exponent_bits - 1)) - mantissa_bits; }
  constexpr std::uint64_t exponent_mask() const { return (std::uint64_t{1} << exponent_bits) - 1; }
  constexpr std::uint64_t mantissa_mask() const { return (std::uint64_t{1} << mantissa_bits) - 1; }
  constexpr std::uint64_t infinity() const { return exponent_mask() << mantissa_bits; }
  constexpr std::uint64_t quiet_nan() const {
    return infinity() | (std::uint64_t{1} << (mantissa_bits - 1));
  }
  constexpr std::uint64_t sign() const {
    return std::uint64_t{1} << (exponent_bits + mantissa_bits);
  }
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
  return {8, 23};
}

inline std::uint64_t element_bits(const void* data, std::size_t i, Dtype dtype) {
  std::uint64_t bits = 0;
  const std::size_t width = element_bytes(dtype);
  std::memcpy(&bits, static_cast<const char*>(data) + i * width, width);
  return bits;
}

inline void set_element_bits(void* data, std::size_t i, Dtype dtype, std::uint64_t bits) {
  const std::size_t width = element_bytes(dtype);
  std::memcpy(static_cast<char*>(data) + i * width, &bits, width);
}

// A decomposed element. A finite one is ±mantissa * 2^(shift + unit of the format), shift >= 0.
struct Element {
  enum class Kind : std::uint8_t { kFinite, kInfinite, kNan };

  Kind kind;
  bool negative;
  int shift;
  std::uint64_t mantissa;
};

inline Element element_of(std::uint64_t bits, Format f) {
  const bool negative = (bits & f.sign()) != 0;
  const std::uint64_t exponent = (bits >> f.mantissa_bits) & f.exponent_mask();
  const std::uint64_t mantissa = bits & f.mantissa_mask();
  if (exponent == f.exponent_mask()) {
    return {mantissa != 0 ? Element::Kind::kNan : Element::Kind::kInfinite, negative, 0, 0};
  }
  if (exponent == 0) return {Element::Kind::kFinite, negative, 0, mantissa};
  return {Element::Kind::kFinite, negative, static_cast<int>(exponent) - 1,
          mantissa | (std::uint64_t{1} << f.mantissa_bits)};
}

inline Element element_at(const void* data, std::size_t i, Dtype dtype) {
  return element_of(element_bits(data, i, dtype), format_of(dtype));
}

// The non-finite values among the leaves of one element, and the result that follows from them.
struct Specials {
  bool nan = false, plus = false, minus = false;

  void add(const Element& e) {
    nan = nan || e.kind == Element::Kind::kNan;
    const bool infinite = e.kind == Element::Kind::kInfinite;
    plus = plus || (infinite && !e.negative);
    minus = minus || (infinite && e.negative);
  }
  bool any() const { return nan || plus || minus; }
  // REQUIRES: any().
  std::uint64_t bits(Format f) const {
    if (nan || (plus && minus)) return f.quiet_nan();
    return minus ? f.infinity() | f.sign() : f.infinity();
  }
};

// Returns the position of the highest set bit; -1 for zero.
constexpr int leading_bit(std::uint64_t bits) { return 63 - std::countl_zero(bits); }

// ceil(log2(leaves)); leaves >= 1.
constexpr int leaf_bits(std::size_t leaves) { return leading_bit(leaves - 1) + 1; }

// Larger divisors are left to the reference: see Division in rounding-inl.h.
inline constexpr std::uint32_t kKernelDivisorMax = 1U << 18;

}  // namespace presum::reduce
