// SPDX-License-Identifier: Apache-2.0
// One statistic of all workers: which worker is always high, or always low (docs/detectors.md, D1).
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

// What a statistic is, and from where on a difference matters.
struct PanelSpec {
  Statistic statistic = Statistic::kLoss;
  bool high = true;  // which sides are watched
  bool low = true;
  double weight = 0;              // of all its components together
  std::size_t least_workers = 2;  // below, the statistic says nothing
  bool relative = false;          // differences are divided by the others' median
  double least_difference = 0;
};

class RankPanel {
 public:
  RankPanel(const PanelSpec& spec, std::size_t workers, std::size_t thetas);

  // Takes one value per worker; not finite ones are left out. False, and nothing changes, where too
  // few are known or all are equal.
  bool update(std::span<const double> values, std::uint64_t step, RankTables& tables);
  // Adds every worker's evidence to `totals`.
  void add_evidence(std::span<double> totals) const;

  // The weighted evidence on one side of one worker.
  double evidence(std::size_t worker, Side side) const;
  // REQUIRES: evidence(worker, side) > 0.
  Window window(std::size_t worker, Side side, std::uint64_t step) const;
  bool matters(const Window& window, Side side) const;
  // The evidence begins anew, on one side or on both.
  void reset(std::size_t worker, Side side);
  void reset_worker(std::size_t worker);

  // What was said about the workers.
  AlarmMemory& memory() { return memory_; }
  const AlarmMemory& memory() const { return memory_; }
  // Those of memory().lasting() that are there at this step.
  std::vector<std::pair<std::uint32_t, Side>> lasting() const;
  // The next step begins a new count of steps: blame and cool-downs end, evidence stays.
  void restart(std::uint64_t step);

  const PanelSpec& spec() const { return spec_; }
  bool watches(Side side) const { return side == Side::kHigh ? spec_.high : spec_.low; }
  std::uint64_t steps() const { return steps_; }
  double scale() const { return scale_.value(); }
  std::size_t workers() const { return workers_; }
  // Of the last step.
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
  double component_weight_;     // of one component
  std::vector<double> blocks_;  // per worker kSnapshots x 2 thetas
  std::vector<double> seen_;    // per worker the three numbers of ReadingSums
  std::vector<double> recent_;
  AlarmMemory memory_;
  RobustScale scale_;
  std::uint64_t steps_ = 0;

  // Of the last step.
  std::vector<Item> reference_;  // ascending: the workers that are compared with each other
  std::vector<Item> suspects_;
  std::vector<double> scratch_;
  std::vector<std::optional<Reading>> readings_;
};

}  // namespace presum::detect
