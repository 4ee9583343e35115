// SPDX-License-Identifier: Apache-2.0
// One statistic of all ranks: finds a rank that is always high or always low (docs/detectors.md,
// D1).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "detect/alarm_memory.h"
#include "detect/detector.h"
#include "detect/e_values.h"

namespace presum::detect {

// A statistic, and the smallest difference in it that matters.
struct PanelSpec {
  Statistic statistic = Statistic::kLoss;
  bool high = true;  // which sides are watched
  bool low = true;
  double weight = 0;              // total over all its components
  std::size_t least_workers = 2;  // with fewer ranks, the panel is not updated
  bool relative = false;          // divide differences by the median of the others
  double least_difference = 0;
};

class RankPanel {
 public:
  RankPanel(const PanelSpec& spec, std::size_t workers, std::size_t thetas);

  // Takes one value per rank; skips values that are not finite. Returns false and changes nothing
  // if too few values are known or all are equal.
  bool update(std::span<const double> values, std::uint64_t step, RankTables& tables);
  // Adds every rank's evidence to `totals`.
  void add_evidence(std::span<double> totals) const;

  // The weighted evidence on one side of one rank.
  double evidence(std::size_t worker, Side side) const;
  // REQUIRES: evidence(worker, side) > 0.
  Window window(std::size_t worker, Side side, std::uint64_t step) const;
  bool matters(const Window& window, Side side) const;
  // Resets the evidence to zero, on one side (`reset`) or both (`reset_worker`).
  void reset(std::size_t worker, Side side);
  void reset_worker(std::size_t worker);

  // The alarms raised about the ranks.
  AlarmMemory& memory() { return memory_; }
  const AlarmMemory& memory() const { return memory_; }
  // The entries of memory().lasting() whose ranks are present at this step.
  std::vector<std::pair<std::uint32_t, Side>> lasting() const;
  // The next step starts a new count of steps: blame and cool-downs end, evidence is kept.
  void restart(std::uint64_t step);

  const PanelSpec& spec() const { return spec_; }
  bool watches(Side side) const { return side == Side::kHigh ? spec_.high : spec_.low; }
  std::uint64_t steps() const { return steps_; }
  double scale() const { return scale_.value(); }
  std::size_t workers() const { return workers_; }
  // At the last step.
  std::optional<Reading> reading(std::size_t worker) const { return readings_[worker]; }
  // Mean difference over about the last ten steps.
  double recent(std::size_t worker) const { return recent_[worker]; }

  auto kept() { return std::tie(blocks_, seen_, recent_, memory_, scale_, steps_); }

 private:
  struct Item {
    double value;
    std::uint32_t worker;
  };
  bool gather(std::span<const double> values, std::uint64_t step);
  bool before(const Item& a, const Item& b, std::uint64_t step) const;
  void update_scale();
  double middle() const;
  double middle_without(std::size_t rank) const;
  void take(const Item& item, std::span<const double> e, double others, std::uint64_t step);
  std::span<double> block(std::size_t worker);
  std::span<const double> block(std::size_t worker) const;
  std::size_t first_column(Side side) const { return side == Side::kHigh ? 0 : thetas_; }

  PanelSpec spec_;
  std::size_t workers_;
  std::size_t thetas_;
  double component_weight_;     // of a single component
  std::vector<double> blocks_;  // per rank, kSnapshots x 2 thetas
  std::vector<double> seen_;    // per rank, the three numbers of ReadingSums
  std::vector<double> recent_;
  AlarmMemory memory_;
  RobustScale scale_;
  std::uint64_t steps_ = 0;

  // Scratch for the last step.
  std::vector<Item> reference_;  // ascending: the ranks that are compared with each other
  std::vector<Item> suspects_;
  std::vector<double> scratch_;
  std::vector<std::optional<Reading>> readings_;
};

}  // namespace presum::detect
