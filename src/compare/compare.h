// SPDX-License-Identifier: Apache-2.0
// Where two runs begin to differ. Pure functions of what their run logs hold; thread-safety: that
// of the logs. How things are compared: docs/compare.md.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "presum/run_log.h"
#include "presum/status.h"

namespace presum::compare {

// What a step goes through, in this order. The first three are its inputs, the others numbers.
enum class Stage : std::uint8_t {
  kConfiguration,
  kData,
  kRandom,
  kParameters,  // and buffers, before the step's forward pass
  kLoss,
  kGradient,   // each worker's own
  kReduction,  // the gradient after it
  kFinal,      // parameters after the last step
};
inline constexpr std::size_t kStages = 8;
// "configuration", "data", "random-generators", "parameters", "loss", "local-gradient",
// "reduction", "final-parameters".
std::string_view to_string(Stage stage);

struct Evidence {
  std::vector<std::uint32_t> ranks;  // whom it is about, ascending; empty: not single workers
  std::string text;                  // one line; not trusted, for it may hold names from a run
};

// How the runs differ at one step and stage. Ranks are those of run A.
struct Difference {
  std::uint64_t step = 0;
  std::vector<std::uint32_t> ranks;  // workers that differ, ascending; empty: not single workers
  bool all_ranks = false;            // no worker that was compared is equal
  std::string what;                  // what differs, in a few words; not trusted
  std::vector<std::string> layers;   // groups that differ, in the order of the backward pass
  std::vector<Evidence> evidence;    // a bounded number
  // The last common step before `step` at which what differs was compared and equal: those
  // parameters, or the loss, gradient or reduced gradient of every worker that differs. None:
  // never, or a stage of the inputs.
  std::optional<std::uint64_t> last_seen;
};

struct StageSummary {
  std::uint64_t compared = 0;   // steps
  std::uint64_t differing = 0;  // of them
  std::optional<Difference> first;
  std::optional<std::uint64_t> last_equal;  // last step before `first` that was compared here
  std::optional<std::uint64_t> last_whole;  // likewise, of every worker and every gradient
};

// The steps that a run has of one model. Steps are counted through restarts, see timeline.h.
struct RecordedSteps {
  std::uint64_t steps = 0;
  std::uint64_t first_step = 0;
  std::uint64_t last_step = 0;
  std::uint32_t workers = 0;  // at the last step
};

struct ModelComparison {
  std::uint32_t module = 0;
  std::uint32_t shard = 0;
  RecordedSteps a;
  RecordedSteps b;
  std::uint64_t common_steps = 0;
  std::array<StageSummary, kStages> stages;
  std::optional<Stage> first;         // none: identical in what was compared
  std::optional<Stage> first_number;  // likewise, inputs left out
  // The difference began after this step: the last common one before that of `first`, or the one at
  // which what differs was last seen equal.
  std::optional<std::uint64_t> last_identical;
  // Losses and gradients are equal up to this step and date a first difference of parameters.
  std::optional<std::uint64_t> dated_after;
  std::uint64_t unrecorded = 0;           // optimiser steps after the last recorded one
  bool any_before = false;                // there are common steps before that of `first`
  bool reduced_equal_before = false;      // reduced gradients before `first` equal
  bool positions_only = false;            // of its samples, at most: the salts differ
  std::vector<Stage> unseen;              // not compared at the step of `first`, and before it
  bool other_worlds = false;              // equal but for the numbers of workers
  std::string worlds;                     // "2 and 3": numbers of workers where they differ
  std::uint64_t world_steps = 0;          // at which they do
  std::string computed;                   // "losses and gradients": those that may date it
  std::string bracket;                    // since when it differs, where that is no single step
  std::string dated;                      // what losses and gradients say about that
  std::string cause;                      // that the update differs, where nothing before it does
  std::string origin;                     // where to look for the cause; empty where identical
  std::vector<std::string> remarks;       // what differs without a consequence, what was assumed
  std::vector<std::string> not_compared;  // and why

  const StageSummary& at(Stage stage) const { return stages[static_cast<std::size_t>(stage)]; }
  StageSummary& at(Stage stage) { return stages[static_cast<std::size_t>(stage)]; }
};

// A fact of the workers that differs between the runs. Process ids and the like are left out.
struct FactDifference {
  enum class Weight : std::uint8_t {
    kDefining,     // the trainings are not the same: a difference of the configuration
    kEnvironment,  // it may change numbers: a possible cause, no difference by itself
    kRecording,    // what presum was told to record
  };
  std::uint32_t module = 0;
  std::string key;
  std::string a;  // not trusted; empty: absent
  std::string b;
  Weight weight = Weight::kEnvironment;
  std::vector<std::uint32_t> ranks;  // that differ; empty: the numbers of workers differ
  bool all_ranks = false;
  std::uint64_t since = 0;  // the first common step of the segments that say so
};

enum class Outcome : std::uint8_t { kIdentical, kDifferent, kNotComparable };

struct Comparison {
  std::string a;  // names of the runs
  std::string b;
  Outcome outcome = Outcome::kNotComparable;
  std::string reason;     // why nothing could be compared; else empty
  std::string agreement;  // what is identical, in one sentence; else empty
  std::vector<ModelComparison> models;
  std::vector<FactDifference> facts;
  std::vector<std::string> not_compared;  // models of one run only
  // The model whose first difference comes first; null where there is none.
  const ModelComparison* first() const;
};

// Runs without a common step are not comparable; that is no error. A difference of random
// generators, of the environment or of the number of workers alone does not make runs different.
// Memory: two steps, and 400 bytes for each step of the longer run. Errors: those of reading the
// runs.
Result<Comparison> compare(const RunLog& a, const RunLog& b);

}  // namespace presum::compare
