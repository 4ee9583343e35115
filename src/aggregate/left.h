// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <utility>

#include "diagnose/resume.h"
#include "presum/status.h"

namespace presum::aggregate {

using LeftModels =
    std::map<std::pair<std::uint32_t, std::uint32_t>, diagnose::Left>;  // module, shard

// What the segments that are in a run's folder left, for the one that is about to begin. Empty
// where there is no run. Keeps what was saved last, at most 64 MiB of it and whole moments only;
// reads the last 4,000 steps.
// Errors: those of RunLog.
Result<LeftModels> read_left(const std::filesystem::path& run);

}  // namespace presum::aggregate
