// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

#include "presum/status.h"

namespace presum::runlog {

// The salt for sample hashes: the environment variable PRESUM_SALT (any text), else the file
// `.presum-salt` beside the run folder where there is one, else the user's,
// `$XDG_CONFIG_HOME/presum/salt`, made with mode 0600 where there is none, else, where that cannot
// be kept, `.presum-salt`, made likewise. Runs of one user hold comparable samples; outsiders
// cannot look samples up. Error (kIo): the file can be neither read nor made.
Result<std::uint64_t> project_salt(const std::filesystem::path& run);

std::uint64_t random_salt();

}  // namespace presum::runlog
