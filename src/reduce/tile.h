// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace presum::reduce {

// Elements that kernels sum together, at most: their accumulators stay in the caches.
inline constexpr std::size_t kTile = 2048;

// How far ahead of its reading a leaf is fetched.
inline constexpr std::size_t kPrefetchBytes = 4096;

// With few leaves a tile is small, so that its results are rounded while the next one is fetched;
// with many, long stretches of each leaf are fetched better.
constexpr std::size_t tile_of(std::size_t leaves) { return leaves <= 8 ? 128 : kTile; }

}  // namespace presum::reduce
