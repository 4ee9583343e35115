// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "presum/status.h"

namespace presum::cli {

// Written beside the file and renamed: whoever looks sees the old page or the new one, whole.
// A file that is no page (a run log, say) is not overwritten. Error (kIo): it is left as it was.
// What is neither a file nor new (a folder, a device) is not replaced either.
Status write_page_file(const std::filesystem::path& file, const std::string& text);

// The error that write_page_file would meet now, for whoever computes long before it writes.
// Nothing is left behind.
Status check_can_write(const std::filesystem::path& file);

}  // namespace presum::cli
