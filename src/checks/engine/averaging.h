// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bitset>
#include <cstdint>

#include "presum/step_record.h"

namespace presum::checks {

// Whether the parameters of ranks that do not reduce gradients differ and become equal again at
// equal distances: local SGD, whose ranks average their parameters now and then. A part of the
// parameters that never differs is hashed again in every 25th record, so equality at such distances
// counts only if the same part was seen to differ. Not synchronized.
class Averaging {
 public:
  // REQUIRES: ascending steps.
  void see(const StepRecord& record);
  // Steps from one average to the next, after three of them at that distance; 0 before, and from
  // the first missing average on.
  std::uint64_t interval() const { return times_ >= kTimes ? distance_ : 0; }
  // Whether the hashed parameters moved and were equal after optimizer steps without a visible
  // reduction, on gradients that differ: the gradients are reduced in a way that presum does not
  // see, or the parameters are overwritten.
  bool by_other_means() const { return equal_ >= kTimes; }
  // Whether the last records were optimizer steps without a visible reduction, on gradients that
  // differ, and without local SGD.
  bool own_steps() const { return own_steps_ >= kTimes && interval() == 0; }

 private:
  static constexpr std::uint64_t kTimes = 3;
  static constexpr std::uint64_t kRound = 25;

  std::uint64_t looks_ = 0;
  std::bitset<kRound> apart_parts_;  // parts that ever differed
  bool kept_own_ = false;            // the last reading was unreduced
  bool apart_ = false;               // parameters differed since they were last equal
  std::uint64_t again_at_ = 0;       // the step at which everything was equal again
  std::uint64_t distance_ = 0;
  std::uint64_t times_ = 0;
  std::uint64_t own_steps_ = 0;  // such optimizer steps in a row, up to now
  std::uint64_t equal_ = 0;  // records after such a step in which all hashes were equal and moved
  std::array<std::uint64_t, kRound> hashes_{};  // by part, the last hash
};

}  // namespace presum::checks
