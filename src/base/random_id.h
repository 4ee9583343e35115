// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <random>

namespace presum::base {

// Returns a number from the system's source of randomness; never 0. Thread-safe.
inline std::uint64_t random_id() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device() | 1;
}

}  // namespace presum::base
