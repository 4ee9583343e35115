// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "presum/status.h"

// Which instruction set kernels use. Each kernel is compiled once for every target and chosen at
// run time; all targets give bit-identical results, so the choice only affects speed. All functions
// are thread-safe. The names are string literals and live for ever.
namespace presum::base {

// The target in use, e.g. "AVX3" (AVX-512), "AVX2", "SSE4" or "EMU128". The best one of this
// processor, unless the environment variable PRESUM_SIMD names another; that is read once, at first
// use. A name that is unknown or not possible here is an error that lists the possible ones; the
// kernels then run with the best target.
Result<std::string_view> simd_target();

// The targets that are compiled in and supported by this processor, the best first; never empty.
std::vector<std::string_view> simd_targets();

// Those that are compiled in and that this processor lacks; may be empty.
std::vector<std::string_view> impossible_simd_targets();

// For tests and benchmarks: the kernels use that target from now on, whatever PRESUM_SIMD says; an
// empty name returns to the choice of simd_target. Fails, and changes nothing, as simd_target does.
Status set_simd_target(std::string_view name);

}  // namespace presum::base
