// SPDX-License-Identifier: Apache-2.0
// Betting on ranks (positions in the sorted order): tables of e-values whose mean over equally
// likely ranks is exactly 1, and the sums that turn a stream of e-values into evidence and the
// window it comes from.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

namespace presum::detect {

enum class Side : std::uint8_t { kHigh = 0, kLow = 1 };
constexpr Side opposite(Side side) { return side == Side::kHigh ? Side::kLow : Side::kHigh; }

// Distance from the others: in robust standard deviations, and as a plain difference.
struct Reading {
  double effect = 0;
  double difference = 0;
};

// A rank's evidence counts only if its mean distance from the others is at least this many of their
// standard deviations.
inline constexpr double kLeastEffect = 0.25;

// Returns whether the alarm was already raised within `cooldown` steps; if not, marks it as raised
// at this step. `raised_at` is the step + 1; 0: never.
inline bool cooling(std::uint64_t& raised_at, std::uint64_t step, std::uint64_t cooldown) {
  if (raised_at != 0 && step + 1 - raised_at <= cooldown) return true;
  raised_at = step + 1;
  return false;
}

// The quantile of the standard normal. REQUIRES: 0 < p < 1.
double normal_quantile(double p);

// e-values of the ranks 0 .. n-1: exp(theta a_r) divided by its mean, with normal scores a_r. A row
// holds the values for +theta, for all thetas, then those for -theta.
class RankTable {
 public:
  // REQUIRES: n >= 1.
  RankTable(std::size_t n, std::span<const double> thetas);
  std::span<const double> row(std::size_t rank) const {
    return std::span(values_).subspan(rank * columns_, columns_);
  }

 private:
  std::size_t columns_;
  std::vector<double> values_;
};

// Tables by number of ranks, created on first use.
class RankTables {
 public:
  explicit RankTables(std::span<const double> thetas) : thetas_(thetas) {}
  // References stay valid until the next trim().
  const RankTable& of(std::size_t n);
  void trim();

 private:
  std::span<const double> thetas_;
  std::map<std::size_t, RankTable> tables_;
};

// How many steps a blamed rank or pair is excluded from comparisons, unless there is new evidence
// against it.
inline constexpr std::uint64_t kBlameSteps = 500;

// The number of a subject's readings so far, and their sums.
struct ReadingSums {
  double count = 0;
  double effect = 0;
  double difference = 0;

  void add(const Reading& reading) {
    count += 1;
    effect += reading.effect;
    difference += reading.difference;
  }
  auto kept() { return std::tie(count, effect, difference); }
};

// The steps since the evidence began, and the means over them.
struct Window {
  std::uint64_t first_step = 0;
  double effect = 0;
  double difference = 0;
};

// A block of k components holds, for each component, M = sum over starts s of prod_{t >= s} e_t,
// and the same sum weighted by the values at each start: the step and the ReadingSums. The
// quotients are means over the possible starts, weighted by their evidence.
inline constexpr std::size_t kSnapshots = 5;

// One step of M <- e (M + 1) for all components of a block of kSnapshots * e.size() numbers.
inline void advance(std::span<double> block, std::span<const double> e, std::uint64_t step,
                    const ReadingSums& before) {
  const std::array<double, kSnapshots> added = {1, double(step), before.count, before.effect,
                                                before.difference};
  for (std::size_t m = 0; m < kSnapshots; ++m) {
    double* at = block.data() + m * e.size();
    for (std::size_t k = 0; k < e.size(); ++k) at[k] = e[k] * (at[k] + added[m]);
  }
}

// The combined window of the components [from, from + count) of a block with `columns` components.
// REQUIRES: the block was advanced at least once since it was empty.
Window window_of(std::span<const double> block, std::size_t columns, std::size_t from,
                 std::size_t count, const ReadingSums& now, std::uint64_t step);

// Treats evidence that began before `step` as begun at `step`, because earlier steps were numbered
// differently.
void begin_at(std::span<double> block, std::size_t columns, std::uint64_t step);

// Resets components to zero.
void clear(std::span<double> block, std::size_t columns, std::size_t from, std::size_t count);

inline double sum(std::span<const double> values) {
  double total = 0;
  for (const double x : values) total += x;
  return total;
}

// Clamps to a value large enough for any purpose, so that one absurd number cannot dominate a sum.
// NaN becomes 0.
inline double bounded(double x) { return std::isnan(x) ? 0 : std::fmin(1e3, std::fmax(-1e3, x)); }

// Reorders `values`. NaN if there are none.
double median(std::span<double> values);

// A running estimate of the standard deviation over ranks: median absolute deviations, corrected
// for small numbers, averaged over about the last 50 steps.
class RobustScale {
 public:
  // Takes the absolute deviations of one step from its center; reorders them.
  void update(std::span<double> deviations);
  double value() const { return weight_ > 0 ? sum_ / weight_ : 0; }
  // The distance in standard deviations, clamped by bounded(). 0 if the difference is 0.
  double distance(double difference) const;

  auto kept() { return std::tie(sum_, weight_); }

 private:
  double sum_ = 0;
  double weight_ = 0;
};

}  // namespace presum::detect
