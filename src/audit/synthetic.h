// SPDX-License-Identifier: Apache-2.0
// Gradients to try sums on. Every value depends on seed, worker and element alone, and on no
// mathematical library, so that a table is the same on every machine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace presum::audit {

enum class Distribution : std::uint8_t {
  kGradients,  // a signal that the workers share and noise of their own, at a scale per layer that
               // ranges over 2^20; a tenth of the rows of embeddings zero on a worker
  kGaussian,   // independent
  kLognormal,  // independent signs, magnitudes spread by a factor of 2^4 (one standard deviation)
  kWide,       // independent signs, exponents even over 60 binades
};

// "gradients", "gaussian", "lognormal", "wide"; none for another name.
std::optional<Distribution> distribution_of(std::string_view name);

// Values of a worker's elements from `first` on, in double. Thread-safe.
void generate(Distribution distribution, std::uint64_t seed, std::uint32_t worker,
              std::uint64_t first, std::span<double> out);

}  // namespace presum::audit
