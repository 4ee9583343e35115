// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/hash.h"

// The fingerprint of a buffer (docs/packet_format.md, "Fingerprint"): 64 bits that depend on every
// bit and on the position of every element, and are the same on every machine; 0 for an empty
// buffer. The buffer is divided into blocks of 1,024 elements. A block's sum is the sum of products
// of pairs of keyed 32-bit words (the NH family of UMAC, Black et al., CRYPTO 1999), mod 2^64; the
// fingerprint adds the mixed sums of the blocks. The keys are public, so it does not protect
// against an adversary.
//
// Words: for f32 the bits of the element, for bf16 and f16 the bits zero-extended, for f64 the low
// and the high half. Word j of a block uses key j. A pair is two adjacent words; a last word
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

// The contribution of one block to the fingerprint; `elements` is its length, 1 to 1,024.
constexpr std::uint64_t fingerprint_of_block(std::uint64_t block_sum, std::uint64_t block_index,
                                             std::size_t elements) {
  return mix64(block_sum + mix64((block_index << 11) + elements));
}

}  // namespace presum::observe
