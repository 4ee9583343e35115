// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/hash.h"

// The rotated-block sketch (docs/packet_format.md, "Sketch"): element i of a buffer is added, with
// a random sign, to one of `size` buckets; the buffer is cut into blocks of `size` elements and
// each block is rotated by a random distance. The dot product of two workers' sketches with the
// same seed estimates the dot product of their gradients without bias. `size` is a power of two.
// Pure functions, thread-safe.
namespace presum::observe {

// 64 signs, one an element, for elements 64 * word to 64 * word + 63; a set bit means negated.
constexpr std::uint64_t sketch_signs(std::uint64_t seed, std::uint64_t word) {
  return splitmix64(seed + word);
}

// By how many buckets block `block` is rotated.
constexpr std::size_t sketch_rotation(std::uint64_t seed, std::uint64_t block, std::size_t size) {
  return static_cast<std::size_t>(splitmix64(seed ^ (2 * block + 1))) & (size - 1);
}

}  // namespace presum::observe
