// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/hash.h"

// The fingerprint of a buffer (docs/packet_format.md, "Fingerprint"): 64 bits that depend on every
// bit and on the place of every element, but not on the machine, and are 0 for an empty buffer.
// Blocks of 1,024 elements; in a block the sum of products of pairs of keyed 32-bit words (the
// NH family of UMAC, Black et al., CRYPTO 1999), mod 2^64; the blocks' mixed sums are added. It is
// no defense against an adversary: the keys are public.
//
// Words: for f32 the element's bits, for bf16 and f16 the bits zero-extended, for f64 the low and
// the high half. Word j of a block goes with key j; a pair is two neighboring words; a last word
// without a partner is paired with a zero word.
namespace presum::observe {

inline constexpr std::size_t kFingerprintBlock = 1024;  // elements
inline constexpr std::size_t kFingerprintKeys = 2 * kFingerprintBlock;

constexpr std::uint32_t fingerprint_key(std::size_t word) {
  return static_cast<std::uint32_t>(splitmix64(0x70726573756D6670ULL + word));
}

alignas(64) inline constexpr auto kFingerprintKey = [] {
  std::array<std::uint32_t, kFingerprintKeys> keys{};
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = fingerprint_key(i);
  return keys;
}();

// What one block adds to the fingerprint; `elements` is its length, 1 to 1,024.
constexpr std::uint64_t fingerprint_of_block(std::uint64_t block_sum, std::uint64_t block_index,
                                             std::size_t elements) {
  return mix64(block_sum + mix64((block_index << 11) + elements));
}

}  // namespace presum::observe
