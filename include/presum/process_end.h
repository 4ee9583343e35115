// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace presum {

// How a process of the job ended. Both fields 0: it ended with exit code 0.
struct ProcessEnd {
  // Exit code of a process that is gone and whose exit status is unknown.
  static constexpr int kUnknown = -1;

  int signal = 0;  // the signal that killed it; 0: none
  int exit_code = 0;
};

}  // namespace presum
