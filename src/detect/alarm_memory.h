// SPDX-License-Identifier: Apache-2.0
// What one panel has said about its workers: who is blamed, what was raised when, and whether it is
// still so.
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

  // A worker at fault is compared with the others, but they no longer with it.
  void blame(std::size_t worker, std::uint64_t step);
  bool blamed(std::size_t worker, std::uint64_t step) const { return blamed_until_[worker] > step; }

  // An alarm was raised; `effect` is its Window's.
  void raised(std::uint32_t worker, Side side, std::uint64_t step, double effect);
  bool cooling(std::size_t worker, Side side, std::uint64_t step, std::uint64_t cooldown) const;

  // Takes what each worker shows at this step, nothing for those that are not there.
  void follow(std::span<const std::optional<Reading>> readings);
  // Workers that were raised and have deviated since: their mean distance from the others, over the
  // longer a window the smaller the effect, is still half of it at least.
  std::vector<std::pair<std::uint32_t, Side>> lasting() const;

  // The next step begins a new count of steps: blame and cool-downs end.
  void restart();

  auto kept() { return std::tie(blamed_until_, raised_at_); }

 private:
  struct Raised {
    std::uint32_t worker = 0;
    Side side = Side::kHigh;
    double effect = 0;  // what it showed, at most two standard deviations
    double mean = 0;    // what it shows now
  };

  std::vector<std::uint64_t> blamed_until_;
  std::vector<std::uint64_t> raised_at_;  // per worker and side; kNever
  std::vector<Raised> raised_;            // those that still deviate; not saved
};

}  // namespace presum::detect
