// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "presum/status.h"

namespace presum::cli {

// How pages begin.
inline constexpr std::string_view kPageStart = "<!DOCTYPE html>";

// Writes a temporary file and renames it, so that readers see either the whole old file or the
// whole new one. Replaces only a regular file that is empty or begins with `start`, as all files of
// its kind do. Error (kIo): nothing was changed.
Status replace_file(const std::filesystem::path& file, const std::string& text,
                    std::string_view start);

}  // namespace presum::cli
