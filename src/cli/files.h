// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "presum/status.h"

namespace presum::cli {

// Written beside the file and renamed: whoever looks sees the old text or the new one, whole.
// Errors: kIo; then the file is left alone.
Status write_whole(const std::filesystem::path& file, const std::string& text);

}  // namespace presum::cli
