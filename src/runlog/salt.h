// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

#include "presum/status.h"

namespace presum::runlog {

// The project's salt for sample hashes: the environment variable PRESUM_SALT (any text), else the
// file `.presum-salt` beside the run folder, made with mode 0600 where there is none. Runs of one
// project hold comparable samples; outsiders cannot look samples up.
// Error (kIo): the file can be neither read nor made.
Result<std::uint64_t> project_salt(const std::filesystem::path& run);

std::uint64_t random_salt();

}  // namespace presum::runlog
