// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "blame/blame.h"

namespace presum::blame {

// The document of `presum blame --format json` (docs/blame.md). Unknown values are null; values
// that are not finite are the text "inf".
nlohmann::ordered_json document(const std::vector<Step>& steps);

}  // namespace presum::blame
