// SPDX-License-Identifier: Apache-2.0
// What one panel has raised about its ranks: which are blamed, what was raised when, and whether it
// still holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "detect/e_values.h"

namespace presum::detect {

// Not synchronized. REQUIRES everywhere: worker < workers.
class AlarmMemory {
 public:
  explicit AlarmMemory(std::size_t workers);

  // A blamed rank is still compared with the others, but the others are not compared with it.
  void blame(std::size_t worker, std::uint64_t step);
  bool blamed(std::size_t worker, std::uint64_t step) const { return blamed_until_[worker] > step; }

  // Records an alarm; `effect` is that of its Window.
  void raised(std::uint32_t worker, Side side, std::uint64_t step, double effect);
  bool cooling(std::size_t worker, Side side, std::uint64_t step, std::uint64_t cooldown) const;

  // Takes each rank's reading at this step; empty for ranks without one.
  void follow(std::span<const std::optional<Reading>> readings);
  // Returns the ranks that have deviated ever since their alarm: their running mean distance from
  // the others has stayed at least half of the alarm's effect. The smaller the effect, the longer
  // the averaging window.
  std::vector<std::pair<std::uint32_t, Side>> lasting() const;

  // The next step starts a new count of steps: blame and cool-downs end.
  void restart();

  auto kept() { return std::tie(blamed_until_, raised_at_); }

 private:
  struct Raised {
    std::uint32_t worker = 0;
    Side side = Side::kHigh;
    double effect = 0;  // effect at the alarm, at most two standard deviations
    double mean = 0;    // current running mean
  };

  std::vector<std::uint64_t> blamed_until_;
  std::vector<std::uint64_t> raised_at_;  // per rank and side; kNever
  std::vector<Raised> raised_;            // those that still deviate; not saved
};

}  // namespace presum::detect
