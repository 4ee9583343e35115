// SPDX-License-Identifier: Apache-2.0
// For tests of rooms with kernels: buffers of every dtype, given as bits, and a loop over all SIMD
// targets.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "base/simd.h"
#include "presum/dtype.h"

namespace presum::base {

inline constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kF64, Dtype::kBF16, Dtype::kF16};

inline const char* name_of(Dtype dtype) {
  constexpr const char* kNames[] = {"F32", "F64", "BF16", "F16"};
  return kNames[static_cast<int>(dtype)];
}

struct Layout {
  int exponent_bits, mantissa_bits;
};

constexpr Layout layout_of(Dtype dtype) {
  constexpr Layout kByDtype[] = {{8, 23}, {11, 52}, {8, 7}, {5, 10}};
  return kByDtype[static_cast<std::size_t>(dtype)];
}

inline std::uint64_t sign_bit(Dtype dtype) {
  return std::uint64_t{1} << (8 * element_bytes(dtype) - 1);
}
inline std::uint64_t infinity_bits(Dtype dtype) {
  const Layout l = layout_of(dtype);
  return ((std::uint64_t{1} << l.exponent_bits) - 1) << l.mantissa_bits;
}

// The nearest element, rounded by the processor or by truncation; sufficient for test data.
inline std::uint64_t bits_near(double x, Dtype dtype) {
  if (dtype == Dtype::kF64) return std::bit_cast<std::uint64_t>(x);
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(static_cast<float>(x));
  if (dtype == Dtype::kF32) return bits;
  if (dtype == Dtype::kBF16) return bits >> 16;
  const std::uint32_t sign = (bits >> 16) & 0x8000;
  const double size = std::min(std::abs(x), 65504.0);
  if (size < 0x1p-14) return sign | static_cast<std::uint64_t>(size * 0x1p24);
  return sign | ((std::bit_cast<std::uint32_t>(static_cast<float>(size)) - (112U << 23)) >> 13);
}

// A buffer that can start at any byte offset.
class Buffer {
 public:
  Buffer(Dtype dtype, std::size_t count, std::size_t offset = 0)
      : dtype_(dtype), count_(count), offset_(offset), bytes_(count * width() + offset) {}

  const void* data() const { return bytes_.data() + offset_; }
  void* data() { return bytes_.data() + offset_; }
  std::size_t count() const { return count_; }
  Dtype dtype() const { return dtype_; }

  std::uint64_t bits(std::size_t i) const {
    std::uint64_t bits = 0;
    std::memcpy(&bits, bytes_.data() + offset_ + i * width(), width());
    return bits;
  }
  void set_bits(std::size_t i, std::uint64_t bits) {
    std::memcpy(bytes_.data() + offset_ + i * width(), &bits, width());
  }
  bool operator==(const Buffer& other) const {
    return std::ranges::equal(std::span(bytes_).subspan(offset_),
                              std::span(other.bytes_).subspan(other.offset_));
  }

 private:
  std::size_t width() const { return element_bytes(dtype_); }

  Dtype dtype_;
  std::size_t count_, offset_;
  std::vector<unsigned char> bytes_;
};

// Calls work() with each target that this processor supports.
template <class Work>
void on_every_target(const Work& work) {
  for (const std::string_view target : simd_targets()) {
    SCOPED_TRACE(target);
    ASSERT_TRUE(set_simd_target(target));
    work();
  }
  ASSERT_TRUE(set_simd_target(""));
}

}  // namespace presum::base
