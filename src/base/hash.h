// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace presum {

// The finalizer of splitmix64: a bijection on 64-bit words (docs/packet_format.md, "mix64").
constexpr std::uint64_t mix64(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

// The output of splitmix64 for a state: mix64 after one golden-ratio step.
constexpr std::uint64_t kSplitMixStep = 0x9E3779B97F4A7C15ULL;
constexpr std::uint64_t splitmix64(std::uint64_t state) { return mix64(state + kSplitMixStep); }

// 64-bit hash of a name: FNV-1a, then mix64. Stable across versions, because it identifies
// parameters and groups in packets and run logs.
constexpr std::uint64_t name_hash(std::string_view name) {
  std::uint64_t h = 0xCBF29CE484222325ULL;
  for (const char c : name) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  return mix64(h);
}

}  // namespace presum
