// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "presum/status.h"

namespace presum::cli {

// Written beside the file and renamed: whoever looks sees the old page or the new one, whole.
// Error (kIo): the file is left as it was.
Status write_whole(const std::filesystem::path& file, const std::string& text);

}  // namespace presum::cli
