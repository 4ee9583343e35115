// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "presum/status.h"

namespace presum::cli {

// Writes a temporary file and renames it, so that readers see either the whole old file or the
// whole new one. Replaces only a file that is empty or begins with the same character, and thus no
// run log, folder or device. REQUIRES: the text is not empty. Error (kIo): nothing was changed.
Status replace_file(const std::filesystem::path& file, const std::string& text);

}  // namespace presum::cli
