// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "presum/status.h"

// The instruction set that the kernels use. Each kernel is compiled once per target and chosen at
// run time. All targets give bit-identical results; the choice affects only speed. All functions
// are thread-safe. The names are string literals with static lifetime.
namespace presum::base {

// Returns the target in use, e.g. "AVX3" (AVX-512), "AVX2", "SSE4" or "EMU128". The default is the
// processor's best target. The environment variable PRESUM_SIMD overrides it; it is read once, at
// first use. For an unknown or unsupported name it returns an error that lists the supported ones,
// and the kernels use the best target.
Result<std::string_view> simd_target();

// The targets that are compiled in and supported by this processor, best first; never empty.
std::vector<std::string_view> simd_targets();

// The targets that are compiled in and not supported by this processor; may be empty.
std::vector<std::string_view> impossible_simd_targets();

// For tests and benchmarks: makes the kernels use a target, overriding PRESUM_SIMD. An empty name
// restores the choice of simd_target(). Fails like simd_target(), and then changes nothing.
Status set_simd_target(std::string_view name);

}  // namespace presum::base
