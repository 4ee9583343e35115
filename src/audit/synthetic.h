// SPDX-License-Identifier: Apache-2.0
// Synthetic gradients for testing sums. A value depends only on seed, rank and element, and on no
// math library, so a table is the same on every machine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace presum::audit {

enum class Distribution : std::uint8_t {
  // A signal shared by the ranks plus noise of each rank, at a scale per layer that ranges over
  // 2^20; a tenth of the embedding rows are zero on a rank.
  kGradients,
  kGaussian,  // independent
  // Independent signs, magnitudes with a standard deviation of a factor of 2^4.
  kLognormal,
  kWide,  // independent signs, exponents uniform over 60 binades
};

// "gradients", "gaussian", "lognormal", "wide"; empty for another name.
std::optional<Distribution> distribution_of(std::string_view name);

// Writes the values of a rank's elements from `first` on, in double. Thread-safe.
void generate(Distribution distribution, std::uint64_t seed, std::uint32_t worker,
              std::uint64_t first, std::span<double> out);

}  // namespace presum::audit
