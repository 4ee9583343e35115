// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "presum/status.h"

namespace presum::cli {

// Written beside the file and renamed: whoever looks sees the old page or the new one, whole.
// A file that is no page (a run log, say) is not overwritten. Error (kIo): it is left as it was.
Status write_whole(const std::filesystem::path& file, const std::string& text);

}  // namespace presum::cli
