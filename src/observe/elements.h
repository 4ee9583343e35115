// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "presum/dtype.h"

namespace presum::observe {

inline double half_value(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 31) {
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(mantissa + 1024, exponent - 25);
}

// Accesses the elements of a buffer one at a time. Borrows the buffer, which may be misaligned.
class Elements {
 public:
  Elements(const void* data, Dtype dtype) : data_(data), dtype_(dtype) {}

  double value(std::size_t i) const {
    switch (dtype_) {
      case Dtype::kF64:
        return read<double>(i);
      case Dtype::kF32:
        return read<float>(i);
      case Dtype::kBF16: {
        const std::uint32_t bits = static_cast<std::uint32_t>(read<std::uint16_t>(i)) << 16;
        float value;
        std::memcpy(&value, &bits, sizeof value);
        return value;
      }
      case Dtype::kF16:
        return half_value(read<std::uint16_t>(i));
    }
    return 0;
  }

 private:
  template <class T>
  T read(std::size_t i) const {
    T value;
    std::memcpy(&value, static_cast<const char*>(data_) + i * sizeof(T), sizeof(T));
    return value;
  }

  const void* data_;
  Dtype dtype_;
};

}  // namespace presum::observe
