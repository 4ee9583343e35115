// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/hash.h"

// The rotated-block sketch (docs/packet_format.md, "Sketch"). The buffer is divided into blocks of
// `size` elements, and each block is rotated by a random distance. Element i is then added, with a
// random sign, to one of `size` buckets. The dot product of two ranks' sketches with the same seed
// is an unbiased estimate of the dot product of their gradients. `size` is a power of two. Pure
// functions, thread-safe.
namespace presum::observe {

// The signs of elements 64 * word to 64 * word + 63, one bit each; a set bit means negated.
constexpr std::uint64_t sketch_signs(std::uint64_t seed, std::uint64_t word) {
  return splitmix64(seed + word);
}

// The number of buckets by which block `block` is rotated.
constexpr std::size_t sketch_rotation(std::uint64_t seed, std::uint64_t block, std::size_t size) {
  return static_cast<std::size_t>(splitmix64(seed ^ (2 * block + 1))) & (size - 1);
}

}  // namespace presum::observe
