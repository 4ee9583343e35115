// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace presum::reduce {

// Elements that kernels sum together: their accumulators stay in the first cache.
inline constexpr std::size_t kTile = 1024;

}  // namespace presum::reduce
