// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "compare/compare.h"

namespace presum::compare {

// Where to look for the cause of the first difference: what is left once all that was compared
// before it is known to be equal. Empty where there is none.
std::string origin_of(const ModelComparison& model);

}  // namespace presum::compare
