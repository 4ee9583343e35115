// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "presum/status.h"

namespace presum::cli {

// Writes a page to a temporary file and renames it: readers see the old page or the new one, whole.
// Error (kIo): nothing was changed. A file that is no page (such as a run log), a folder or a
// device is not replaced.
Status write_page_file(const std::filesystem::path& file, const std::string& text);

}  // namespace presum::cli
