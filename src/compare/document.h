// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nlohmann/json.hpp>

#include "compare/compare.h"

namespace presum::compare {

// The document of `presum compare --format json` (docs/compare.md). The page draws it too.
nlohmann::ordered_json document(const Comparison& comparison);

}  // namespace presum::compare
