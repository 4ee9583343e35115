// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace presum {

// Element type of a gradient buffer, in native (little-endian) byte order.
enum class Dtype : std::uint8_t { kF32 = 0, kF64 = 1, kBF16 = 2, kF16 = 3 };

constexpr std::size_t element_bytes(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF64:
      return 8;
    case Dtype::kF32:
      return 4;
    case Dtype::kBF16:
    case Dtype::kF16:
      return 2;
  }
  return 0;
}

}  // namespace presum
