// SPDX-License-Identifier: Apache-2.0
// Values of 16 and 32 bits held in float, those of 64 bits in double, and their rounding.
//
// Rounding the float sum of two bf16 or two fp16 values once more equals rounding their exact sum
// (24 >= 2 * 11 + 2 bits), so such an addition is the one that hardware performs.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#include "presum/dtype.h"

namespace presum::audit {

struct AsIs {
  template <class Real>
  Real operator()(Real x) const {
    return x;
  }
};

struct ToF32 {
  double operator()(double x) const { return static_cast<double>(static_cast<float>(x)); }
};

struct ToBF16 {
  float operator()(float x) const {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t up = bits + 0x7FFFU + ((bits >> 16) & 1U);
    const bool nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
    return std::bit_cast<float>((nan ? bits | 0x00400000U : up) & 0xFFFF0000U);
  }
};

struct ToF16 {
  float operator()(float x) const {
    const auto bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t up = (bits + 0xFFFU + ((bits >> 13) & 1U)) & 0xFFFFE000U;
    const float size = std::fabs(x);
    // Below 2^-14 the spacing is 2^-24, the spacing of floats from 0.5 to 1.
    const float small = std::copysign((size + 0.5F) - 0.5F, x);
    const float large = size >= 65520.F ? std::copysign(std::numeric_limits<float>::infinity(), x)
                                        : std::bit_cast<float>(up);
    const float finite = size < 0x1p-14F ? small : large;
    return size <= std::numeric_limits<float>::infinity() ? finite : x;
  }
};

// Returns whether a Real holds every value of the dtype, and the sum of two of them accurately
// enough.
template <class Real>
constexpr bool holds(Dtype dtype) {
  return std::is_same_v<Real, double> ? dtype == Dtype::kF64 || dtype == Dtype::kF32
                                      : dtype != Dtype::kF64;
}

// Calls body(rounding) with the rounding to the dtype. REQUIRES: holds<Real>(dtype).
template <class Real, class Body>
void with_rounding(Dtype dtype, Body&& body) {
  if constexpr (std::is_same_v<Real, double>) {
    dtype == Dtype::kF32 ? body(ToF32{}) : body(AsIs{});
  } else {
    if (dtype == Dtype::kBF16) return body(ToBF16{});
    if (dtype == Dtype::kF16) return body(ToF16{});
    body(AsIs{});
  }
}

// Converts elements in memory, from `first` on, to values, and values to memory. Does not round; a
// value of a narrower dtype is kept. REQUIRES: holds<Real>(dtype); for `pack`, values of the dtype.
template <class Real>
void unpack(const void* elements, std::size_t first, Dtype dtype, std::span<Real> out);
template <class Real>
void pack(std::span<const Real> values, Dtype dtype, void* out);

// Returns the position of a value among all values of its dtype: neighbors differ by one, and both
// zeros are 0. REQUIRES: a finite or infinite value of the dtype.
template <class Real>
std::int64_t place(Real value, Dtype dtype);

// Returns whether two values are equal as numbers: NaN equals NaN, and the sign of zero does not
// count (docs/audit.md).
template <class Real>
bool same(Real a, Real b) {
  return a == b || (a != a && b != b);
}

// Half the distance from a value of the dtype to the next larger one in magnitude.
double half_ulp(double value, Dtype dtype);
int significand_bits(Dtype dtype);   // 53, 24, 11, 8
int smallest_exponent(Dtype dtype);  // of the smallest normal number: -1022, -126, -14, -126

}  // namespace presum::audit
