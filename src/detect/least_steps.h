// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace presum::detect {

// The steps after which a Detector with its default options names a worker whose loss is the
// highest at every one of them, and nothing else is known: no run that is shorter can show a
// lasting difference in one statistic. 0 for fewer than two workers; of more than 1,024 as of
// 1,024.
std::uint64_t least_steps(std::size_t workers);

}  // namespace presum::detect
