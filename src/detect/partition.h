// SPDX-License-Identifier: Apache-2.0
// Tests whether micro-batch losses are spread over ranks as chance would spread them
// (docs/detectors.md, D3).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "detect/e_values.h"

namespace presum::detect {

// The smallest distance between two of the losses; NaN for fewer than two. `scratch` is
// overwritten.
double closest(std::span<const double> losses, std::vector<double>& scratch);

class Partition {
 public:
  // Compared with random assignments of the same losses to the ranks.
  enum Test : std::uint8_t {
    kEven = 0,    // the ranks' means are too similar
    kUneven = 1,  // the ranks' means are too different
    kClose = 2,   // losses of the same rank are too close to each other
  };
  static constexpr std::size_t kTests = 3;
  static constexpr std::size_t kAssignments = 64;  // the true one and 63 random ones
  static constexpr std::size_t kBets = 5;

  // Takes one list of finite losses per rank; skips lists with fewer than two. Returns false and
  // changes nothing for fewer than two lists, or if all losses are equal. Losses that are weighted
  // by the size of their micro-batches scatter more within a rank than their sums do between ranks,
  // so kEven is not updated if `weigh_alike` is false.
  bool update(const std::vector<std::vector<double>>& losses, bool weigh_alike, std::uint64_t step);

  double evidence(Test test) const;
  // REQUIRES: evidence(test) > 0.
  Window window(Test test, std::uint64_t step) const;
  static bool matters(Test test, const Window& window);
  void reset(Test test);
  // Returns whether the test was raised within `cooldown` steps; if not, marks it as raised at this
  // step.
  bool cooling(Test test, std::uint64_t step, std::uint64_t cooldown) {
    return detect::cooling(raised_at_[test], step, cooldown);
  }
  // The next step starts a new count of steps: cool-downs end, evidence is kept.
  void restart(std::uint64_t step);

  auto kept() { return std::tie(tracks_, raised_at_, steps_); }

 private:
  struct Track {
    std::array<double, kSnapshots* kBets> block = {};
    ReadingSums seen;

    auto kept() { return std::tie(block, seen); }
  };
  using Values = std::array<double, kAssignments>;
  bool gather(const std::vector<std::vector<double>>& losses, std::uint64_t step);
  void set_unit();
  double between() const;
  double closeness();
  void take(Test test, std::size_t rank, double effect, double ratio, std::uint64_t step);

  std::array<Track, kTests> tracks_;
  std::array<std::uint64_t, kTests> raised_at_ = {};  // step + 1; 0: never
  std::uint64_t steps_ = 0;

  // Scratch for the last step.
  std::vector<double> pool_;         // the losses of all ranks, one rank after another
  std::vector<std::size_t> counts_;  // number of losses per rank
  std::vector<double> scratch_;
  double mean_ = 0;
  double unit_ = 0;
};

// The e-values of a rank from 1 to kAssignments (its position among the assignments) that bet on
// small ranks. Their mean is 1.
std::array<double, Partition::kBets> partition_bets(std::size_t rank);

}  // namespace presum::detect
