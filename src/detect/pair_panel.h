// SPDX-License-Identifier: Apache-2.0
// The cosines of all pairs: finds a pair that is always the most similar or the most opposed
// (docs/detectors.md, D2).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "detect/e_values.h"

namespace presum::detect {

inline constexpr std::array kPairStakes = {0.15, 0.5, 0.9};

// One tail. Stores only pairs that were recently the extreme one; all other pairs have the same
// evidence.
class PairTail {
 public:
  struct Entry {
    std::uint32_t i = 0;
    std::uint32_t j = 0;
    std::array<double, kSnapshots * kPairStakes.size()> block = {};
    ReadingSums seen;

    auto kept() { return std::tie(i, j, block, seen); }
  };

  // (i, j) is the pair with the tail's largest value among `pairs`; `reading(a, b)` returns the
  // reading of a pair at this step, if any.
  template <class Read>
  void update(std::uint32_t i, std::uint32_t j, double pairs, std::uint64_t step, Read&& reading) {
    touch(i, j, step);
    for (Entry& entry : entries_) {
      const std::optional<Reading> shown = reading(entry.i, entry.j);
      if (shown) take(entry, entry.i == i && entry.j == j, pairs, *shown, step);
    }
    settle();
  }
  const std::vector<Entry>& entries() const { return entries_; }
  static double evidence(const Entry& entry) {
    return sum(std::span(entry.block).first(kPairStakes.size()));
  }
  template <class Condition>
  void forget_if(const Condition& condition) {
    std::erase_if(entries_, condition);
  }
  void restart(std::uint64_t step);

  auto kept() { return std::tie(entries_, untouched_); }

 private:
  void touch(std::uint32_t i, std::uint32_t j, std::uint64_t step);
  static void take(Entry& entry, bool extreme, double pairs, const Reading& shown,
                   std::uint64_t step);
  void settle();

  std::vector<Entry> entries_;
  std::array<double, kPairStakes.size()> untouched_ = {};  // M of each pair that is not stored
};

class PairPanel {
 public:
  explicit PairPanel(std::size_t workers = 0) : workers_(workers) {}

  // `replicas` are those of the record's ranks, ascending; `cosines` as in StepRecord. Returns
  // false and changes nothing for fewer than three ranks, without a matrix, or if all cosines are
  // equal.
  bool update(std::span<const std::uint32_t> replicas, std::span<const float> cosines,
              std::uint64_t step);

  struct Crossing {
    std::uint32_t i = 0;
    std::uint32_t j = 0;
    bool similar = true;
    double evidence = 0;
    Window window;
  };
  // Returns the pairs whose evidence has reached `level`, and resets that evidence. Leaves out
  // pairs whose effect does not matter, or that were named within the last `cooldown` steps.
  std::vector<Crossing> crossings(double level, std::uint64_t step, std::uint64_t cooldown);
  // Whether the rank belongs to a pair that was named in the last 500 steps, or would have been but
  // for the cool-down.
  bool named(std::uint32_t worker, std::uint64_t step) const;
  // The next step starts a new count of steps: no pair is named, evidence is kept.
  void restart(std::uint64_t step);
  std::uint64_t steps() const { return steps_; }

  auto kept() { return std::tie(tails_, named_, scale_, steps_); }
  // Whether the restored pairs consist of ranks that exist.
  bool fits() const;

 private:
  struct NamedPair {
    std::uint32_t i = 0;
    std::uint32_t j = 0;
    std::uint64_t similar = 0;
    std::uint64_t raised = 0;
    std::uint64_t last = 0;  // the last step with enough evidence

    auto kept() { return std::tie(i, j, similar, raised, last); }
  };
  struct Extremes {
    std::size_t low = 0;  // positions in the matrix
    std::size_t high = 0;
    std::size_t known = 0;
    double middle = 0;
  };
  Extremes find(std::span<const float> cosines, std::uint64_t step);
  bool cooling(const Crossing& crossing, std::uint64_t step, std::uint64_t cooldown);

  std::size_t workers_;
  std::array<PairTail, 2> tails_;  // opposed, similar
  std::vector<NamedPair> named_;
  RobustScale scale_;
  std::uint64_t steps_ = 0;

  std::vector<double> scratch_;
  std::vector<std::uint32_t> position_;  // a replica's position in the record; kAbsent
};

}  // namespace presum::detect
