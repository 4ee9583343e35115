// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace presum::checks {

// How often in a row something was so, over the records in which it was looked at.
struct Streak {
  // It goes on while it was so in at least one in this many records since it began.
  std::uint64_t one_in = 1;
  std::uint64_t length = 0;      // records in which it was so; 0: none goes on
  std::uint64_t first_step = 0;  // of the first of them
  std::uint64_t looks = 0;       // records since then

  // The length after this record.
  std::uint64_t see(bool so, std::uint64_t step) {
    if (length == 0 && !so) return 0;
    if (length == 0) first_step = step;
    length += so ? 1 : 0;
    if (++looks > one_in * length) end();
    return length;
  }
  void end() { length = looks = 0; }
};

}  // namespace presum::checks
