// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bitset>
#include <cstdint>

#include "presum/step_record.h"

namespace presum::checks {

// Whether the parameters of ranks that reduce no gradient differ and become equal again at equal
// distances: local SGD, whose ranks average their parameters now and then. A part of the parameters
// that never differs is hashed again in every 25th record: equal at such distances counts where the
// same part was seen to differ. Not synchronized.
class Averaging {
 public:
  // REQUIRES: ascending steps.
  void see(const StepRecord& record);
  // Steps from one average to the next, once there were three of them at that distance; 0 before,
  // and from the first that was not made.
  std::uint64_t interval() const { return times_ >= kTimes ? distance_ : 0; }
  // Whether what was hashed of the parameters moved and was equal after optimizer steps that nobody
  // was seen to reduce for, on gradients that differ: they are reduced in a way that presum does
  // not see, or overwritten.
  bool by_other_means() const { return equal_ >= kTimes; }
  // Whether the last records were optimizer steps that nobody was seen to reduce for, on gradients
  // that differ, and none of local SGD.
  bool own_steps() const { return own_steps_ >= kTimes && interval() == 0; }

 private:
  static constexpr std::uint64_t kTimes = 3;
  static constexpr std::uint64_t kRound = 25;

  std::uint64_t looks_ = 0;
  std::bitset<kRound> apart_parts_;  // that were ever seen to differ
  bool kept_own_ = false;            // gradients that were to be reduced, when they were read last
  bool apart_ = false;               // something did, since all was equal
  std::uint64_t again_at_ = 0;       // the step at which all was equal again
  std::uint64_t distance_ = 0;
  std::uint64_t times_ = 0;
  std::uint64_t own_steps_ = 0;  // the last records that were such optimizer steps, in a row
  std::uint64_t equal_ = 0;      // records after such a one, all that was hashed equal and moved
  std::array<std::uint64_t, kRound> hashes_{};  // by part, when it was hashed last
};

}  // namespace presum::checks
