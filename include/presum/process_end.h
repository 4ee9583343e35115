// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace presum {

// How a process of the job ended, as whoever watches it was told. Both 0: with exit code 0.
struct ProcessEnd {
  static constexpr int kUnknown = -1;  // as exit code: it is gone, and nobody says how

  int signal = 0;  // that killed it; 0: none
  int exit_code = 0;
};

}  // namespace presum
