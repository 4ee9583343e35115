// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <unordered_map>

#include "presum/step_record.h"

namespace presum::checks {

// Follows which of one rank's parameters do not change: every rehashed part is equal to before,
// after optimizer steps that should have changed it. Memory: the hashes of 50 records, and at most
// 65,536 layers. Not synchronized.
class StillParameters {
 public:
  static constexpr std::uint64_t kRound = 25;  // records in which all of a model is hashed once
  static constexpr std::uint64_t kKept = 2 * kRound;

  // A layer whose parts were unchanged whenever they were hashed.
  struct Layer {
    std::uint64_t since = 0;    // the look at which that began
    std::uint64_t repeats = 0;  // values seen again since
    std::uint64_t first_step = 0;
    std::uint64_t rested = 0;  // the last look at which nothing should move it
    bool sharded = false;      // this rank holds a part of it
  };

  // REQUIRES: ascending steps.
  void see(const WorkerRecord& worker, std::uint64_t step);
  // A layer without a gradient should not move.
  void forget_layer(std::uint64_t group) { layers_.erase(group); }
  // Nothing should move it at this look.
  void rests(std::uint64_t group);

  // The whole model is unchanged. If steps are rare, counts until all parts were hashed after some
  // of them.
  bool all_still() const {
    return unchanged_ >= kRound && repeats_ > 0 && trained_ - trained_before_ >= kRound;
  }
  // The layer, if it did not change for two rounds; otherwise null.
  const Layer* still_layer(std::uint64_t group) const;

  // Whether nothing should have moved it at some look of the last two rounds.
  bool rested(const Layer& layer) const {
    return layer.rested > 0 && looks_ - layer.rested < kKept;
  }

  std::uint64_t steps() const { return taken_; }  // since something changed
  std::uint64_t first_step() const { return first_step_; }
  bool hashed() const { return hashed_; }        // some parameter
  bool moved() const { return moved_; }          // some parameter, as far as hashes show
  bool trained() const { return trained_ > 0; }  // a step should have changed some
  bool hashed_twice() const { return looks_ > kParts; }

 private:
  // Looks until all parts were seen: the first covers everything.
  static constexpr std::uint64_t kParts = kRound + 1;
  struct Held {
    std::uint64_t step = 0;     // at which it was first seen
    std::uint64_t look = 0;     // at which it was last seen
    std::uint64_t trained = 0;  // records with a step before that
  };

  void follow(const StateHash& state, std::uint64_t step);
  void take_steps(const WorkerRecord& worker);

  std::unordered_map<std::uint64_t, Held> held_;     // by group and value
  std::unordered_map<std::uint64_t, Layer> layers_;  // by group
  std::uint64_t looks_ = 0;
  std::uint64_t unchanged_ = 0;  // records in a row
  std::uint64_t repeats_ = 0;    // values seen again in them
  std::uint64_t first_step_ = 0;
  std::uint64_t trained_ = 0;         // records with a step that should change parameters
  std::uint64_t trained_before_ = 0;  // the same, at the last change
  std::uint64_t taken_ = 0;           // steps since
  std::uint64_t steps_ = 0;           // of the optimizer, at the last record
  bool hashed_ = false;
  bool moved_ = false;
};

double learning_rate(const WorkerRecord& worker);

}  // namespace presum::checks
