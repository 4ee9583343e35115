// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>
#include <vector>

namespace presum::cli {

// Exit codes of every command.
enum ExitCode : int {
  kOk = 0,         // fine, or identical
  kFindings = 1,   // findings at or above the requested level, or different
  kNoVerdict = 2,  // no judgment possible: bad usage, bad input, too little evidence
  kInternal = 3,
};

// Runs `presum ARGS...` (without the program name) and returns its exit code. Results go to `out`,
// one-line errors to `err`. Never throws.
int main(const std::vector<std::string>& args, std::ostream& out, std::ostream& err);

}  // namespace presum::cli
