// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "compare/compare.h"
#include "compare/run.h"
#include "compare/step_pair.h"
#include "compare/timeline.h"

namespace presum::compare {

// The two segments that a common step belongs to: their recording settings, and the facts in which
// they differ. The runs must outlive this object.
class SegmentPair {
 public:
  SegmentPair(const Run& a, const Run& b, ModelPart key) : a_(a), b_(b), key_(key) {}

  // Enters the next common step. Compares facts if the pair of segments has changed.
  void enter(const TimelineReader::Step& a, const TimelineReader::Step& b);

  // REQUIRES (these and same_salt()): enter() was called.
  const std::pair<std::uint32_t, std::uint32_t>& numbers() const { return *numbers_; }
  std::uint64_t every_a() const { return every_a_; }
  std::uint64_t every_b() const { return every_b_; }
  bool same_salt() const { return same_salt_; }

  // The first step at which facts that define the training differ, and the number of steps at which
  // they do.
  const std::optional<std::uint64_t>& defining_since() const { return defining_since_; }
  std::uint64_t defining_steps() const { return defining_steps_; }
  // Adds the defining facts that already differ at the step of `first`. REQUIRES: `first` is a
  // difference of the configuration.
  void add_defining_facts(Difference& first) const;
  std::vector<FactDifference> take_facts() { return std::move(facts_); }

 private:
  void compare_facts(const TimelineReader::Step& a, const TimelineReader::Step& b);
  void add_fact(FactDifference fact, std::uint64_t step, bool world);

  const Run& a_;
  const Run& b_;
  ModelPart key_;
  std::optional<std::pair<std::uint32_t, std::uint32_t>> numbers_;  // empty: no common step yet
  std::uint64_t every_a_ = 0, every_b_ = 0;
  bool same_salt_ = false;
  std::vector<FactDifference> facts_;
  std::optional<std::uint64_t> defining_since_;
  std::uint64_t defining_steps_ = 0;
};

}  // namespace presum::compare
