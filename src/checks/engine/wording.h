// SPDX-License-Identifier: Apache-2.0
// A finding as people read it: one text for the terminal, the page and Python.
#pragma once

#include <string>

#include "presum/finding.h"

namespace presum::checks {

struct Wording {
  std::string sentence;     // who, what, since when; without a full stop
  std::string consequence;  // a sentence; empty of what is information only
  std::string evidence;     // values by name, but of statistics; may be empty
  std::string more;         // a command that says more of its check
};

// Of any finding, also one that another version of presum wrote: what is not known is left out.
Wording wording(const Finding& finding);

}  // namespace presum::checks
