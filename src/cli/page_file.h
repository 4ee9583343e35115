// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "presum/status.h"

namespace presum::cli {

// Writes a page to a temporary file and renames it, so that readers see either the whole old page
// or the whole new one. Does not replace a file that is no page (such as a run log), a folder or a
// device. Error (kIo): nothing was changed.
Status write_page_file(const std::filesystem::path& file, const std::string& text);

}  // namespace presum::cli
