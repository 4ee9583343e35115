// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>

#include "presum/status.h"

namespace presum::runlog {

// The salt for sample hashes, from the first of these that applies:
// 1. the environment variable PRESUM_SALT (any text);
// 2. the file `.presum-salt` next to the run folder, if it exists;
// 3. the user's file `$XDG_CONFIG_HOME/presum/salt` (default `~/.config`), created with mode 0600
//    if absent;
// 4. if that cannot be stored, `.presum-salt`, created in the same way.
// Samples of all runs of one user are comparable; others cannot look samples up. Error (kIo): the
// file can be neither read nor created.
Result<std::uint64_t> project_salt(const std::filesystem::path& run);

std::uint64_t random_salt();

}  // namespace presum::runlog
