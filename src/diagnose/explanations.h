// SPDX-License-Identifier: Apache-2.0
// What `presum explain CHECK` and the report tell of a check, beside what the catalogue says.
#pragma once

#include <string_view>

namespace presum::diagnose {

struct Explanation {
  std::string_view consequence;  // of leaving it, one sentence
  std::string_view blind;        // what the check cannot see
  std::string_view code;         // the mistake as it looks in a program, lines of Python
};

// By the id of a check; null where there is none of this name.
const Explanation* explanation(std::string_view check);

}  // namespace presum::diagnose
