// SPDX-License-Identifier: Apache-2.0
// Recorded steps played again with their workers in another order: what recorders really send,
// exchangeable by construction.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "detect/simulate.h"
#include "presum/step_record.h"

namespace presum::detect {

// Plays steps over and over. A new order is drawn every `block` steps: with 1 workers are
// exchangeable at every step given the past, with more what lasts in one worker's values lasts for
// so long. Deterministic by seed.
class Replay {
 public:
  // REQUIRES: steps, which outlive this, are some; all hold the same number of workers, at least
  // two. block > 0.
  Replay(std::span<const StepRecord> steps, std::uint64_t block, std::uint64_t seed);
  // Valid until the next call. Steps count from 0; replica and rank of a worker are its place.
  const StepRecord& next();

 private:
  void shuffle();
  void reorder(const StepRecord& from);

  std::span<const StepRecord> steps_;
  std::uint64_t block_;
  std::uint64_t state_;
  std::uint64_t played_ = 0;
  std::vector<std::size_t> order_;
  StepRecord record_;
};

// As of simulate.h, at a detector's level.
FalseAlarms false_alarms(std::span<const StepRecord> steps, std::uint64_t block, double level,
                         std::uint64_t count, std::uint64_t seed, const Progress& progress);

}  // namespace presum::detect
