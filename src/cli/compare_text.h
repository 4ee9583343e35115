// SPDX-License-Identifier: Apache-2.0
// A comparison as text for people. Whatever a run holds is made printable.
#pragma once

#include <string>

#include "compare/compare.h"

namespace presum::cli {

std::string comparison_text(const compare::Comparison& comparison);

}  // namespace presum::cli
