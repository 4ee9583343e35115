// SPDX-License-Identifier: Apache-2.0
// A finding as text: the same for the terminal, the page and Python.
#pragma once

#include <string>

#include "presum/finding.h"

namespace presum::checks {

struct Wording {
  std::string sentence;     // who, what, since when; without a period
  std::string consequence;  // a sentence; empty for information
  std::string evidence;     // values by name, except for statistics; may be empty
  std::string more;         // a command that shows more about the check
};

// Accepts any finding, including one of another version of presum; leaves out unknown parts.
Wording wording(const Finding& finding);

}  // namespace presum::checks
