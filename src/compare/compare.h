// SPDX-License-Identifier: Apache-2.0
// Where two runs begin to differ, as facts; wording.h puts them in words. Pure functions of what
// the run logs hold; thread-safety: that of the logs. How things are compared: docs/compare.md.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "compare/evidence.h"
#include "presum/run_log.h"
#include "presum/status.h"
#include "presum/times.h"

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

// How the runs differ at one step and stage. Ranks are those of run A.
struct Difference {
  std::uint64_t step = 0;
  std::vector<std::uint32_t> ranks;  // workers that differ, ascending; empty: not single workers
  bool all_ranks = false;            // no worker that was compared is equal
  What what;
  std::vector<std::string> layers;  // groups that differ, in the order of the backward pass
  std::vector<Evidence> evidence;   // a bounded number
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
};

// The steps that a run has of one model. Steps are counted through restarts, see timeline.h.
struct RecordedSteps {
  std::uint64_t steps = 0;
  std::uint64_t first_step = 0;
  std::uint64_t last_step = 0;
  std::uint32_t workers = 0;  // at the last step
};

// Since when a difference is there, where that is no single step.
struct Bracket {
  // It began at this step or later. None: what differs was not compared before.
  std::optional<std::uint64_t> since;
  std::uint64_t end = 0;  // the step after the last one whose update can be the cause
};

// ---- what else is to be known

// Workers made fewer optimizer steps in one run, from a step on.
struct FewerUpdates {
  Side run = Side::kA;
  std::uint64_t from = 0;
  std::vector<std::uint32_t> ranks;  // ascending
};

// Random generators that are left out because nobody seeded them.
struct UnseededGenerators {
  std::vector<std::uint32_t> kinds;  // of fingerprints, ascending
};

// Random generators differ from a step on, without a consequence.
struct IdleGenerators {
  std::vector<std::uint32_t> kinds;  // likewise
  std::uint64_t from = 0;
  std::optional<std::uint64_t> equal_at;  // a step that came out equal; none: all did
};

// A segment's record lacks something, and says so.
struct IncompleteRecord {
  Side run = Side::kA;
  SegmentInfo segment;
};

// The run was killed, or is still going on.
struct UnclosedRun {
  Side run = Side::kA;
};

// How the steps of a segment are numbered on from those of the segments before it.
enum class Alignment : std::uint8_t {
  kFirst,    // the first segment
  kReplays,  // its first step has the gradients, or else the samples, of one earlier step
  kRestart,  // its first step has the samples and the parameters of step 0
  kAssumed,  // it is taken to go on after the last recorded step
};

// A run was restarted.
struct Restart {
  Side run = Side::kA;
  std::uint32_t segment = 0;
  std::uint64_t step = 0;  // its first one
  Alignment alignment = Alignment::kAssumed;
};

using Remark = std::variant<FewerUpdates, UnseededGenerators, IdleGenerators, IncompleteRecord,
                            UnclosedRun, Restart>;

// ---- what was not compared, and why

// A stage, at some of the common steps.
struct UncomparedStage {
  enum class Why : std::uint8_t {
    kNotInA,
    kNotInB,
    kNotInEither,
    kOtherWorkerCounts,
    kSalts,  // differ, so that hashes of samples do
    kRowsNotKept,
    kOtherParameters,  // hashes are of other ones
    kOtherEnds,        // the runs did not end at the same step, or after as many updates
    kNotRead,          // no gradient was
    kNoCommonWorker
  };
  Stage stage = Stage::kData;
  std::uint64_t steps = 0;
  Why why = Why::kNotInEither;
};

// A part of what was compared, at some of the common steps.
struct UncomparedPart {
  enum class Part : std::uint8_t { kSampleContents, kUnreadGradients, kMissingRanks };
  Part part = Part::kSampleContents;
  std::uint64_t steps = 0;
};

// Steps that one run alone has.
struct StepsOfOneRun {
  Side run = Side::kA;
  std::uint64_t steps = 0;
};

using NotCompared = std::variant<UncomparedStage, UncomparedPart, StepsOfOneRun>;

// ---- how long it took, which makes no runs different

// Mean seconds a step, over workers and steps.
struct TimeDifference {
  double a = kNaN;
  double b = kNaN;
  double low = kNaN;  // 95% interval of b - a; NaN: too few steps to tell
  double high = kNaN;
  // The interval leaves out "no difference".
  bool differs() const { return low > 0 || high < 0; }
};

struct TimeComparison {
  std::uint64_t steps = 0;  // common ones of which times are known in both runs
  TimeDifference own;       // all phases but the reduction
  std::array<TimeDifference, kPhaseCount> phases;  // by Phase
  const TimeDifference& of(Phase phase) const { return phases[static_cast<std::size_t>(phase)]; }
};

struct ModelComparison {
  std::uint32_t model_index = 0;
  std::uint32_t dp_group = 0;
  RecordedSteps a;
  RecordedSteps b;
  std::uint64_t common_steps = 0;
  std::array<StageSummary, kStages> stages;
  std::optional<Stage> first;         // none: identical in what was compared
  std::optional<Stage> first_number;  // likewise, inputs left out
  // The difference began after this step: the last common one before that of `first`, or the one at
  // which what differs was last seen equal.
  std::optional<std::uint64_t> last_identical;
  std::uint64_t unrecorded = 0;      // optimizer steps after the last recorded one
  bool any_before = false;           // there are common steps before that of `first`
  std::vector<Stage> unseen;         // not compared at the step of `first`, and before it
  bool other_worlds = false;         // equal but for the numbers of workers
  std::vector<WorkerCounts> worlds;  // where they differ, each once, ascending
  std::uint64_t world_steps = 0;     // at which they do
  std::optional<Bracket> bracket;    // none: it began where it was found, or never
  std::vector<Remark> remarks;
  std::vector<NotCompared> not_compared;
  std::optional<TimeComparison> times;  // none: not known in both runs at any common step

  // Whether anything was compared that is computed.
  bool compares_numbers() const;
  // Whether the first difference of `stage` comes before that of `than` (none: it does); of two at
  // one step the earlier stage counts.
  bool differs_earlier(Stage stage, const std::optional<Stage>& than) const;
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
  std::uint32_t model_index = 0;
  std::string key;
  std::vector<std::string> a;  // values of workers, each once; not trusted; none: absent
  std::vector<std::string> b;
  Weight weight = Weight::kEnvironment;
  std::vector<std::uint32_t> ranks;  // that differ; empty: the numbers of workers differ
  bool all_ranks = false;
  std::uint64_t since = 0;  // the first common step of the segments that say so
};

enum class Outcome : std::uint8_t { kIdentical, kDifferent, kNotComparable };

// Why nothing could be compared.
enum class Obstacle : std::uint8_t {
  kNoStepInA,
  kNoStepInB,
  kNoCommonModel,
  kNoCommonStep,
  kNothingInSteps,  // the common steps hold nothing that both runs recorded
};

struct ModelOfOneRun {
  std::uint32_t model_index = 0;
  std::uint32_t dp_group = 0;
  Side run = Side::kA;
};

struct Comparison {
  std::string a;  // names of the runs
  std::string b;
  Outcome outcome = Outcome::kNotComparable;
  std::optional<Obstacle> obstacle;  // kNotComparable: why
  std::vector<ModelComparison> models;
  std::vector<FactDifference> facts;
  std::vector<ModelOfOneRun> not_compared;
  // The model whose first difference comes first; null where there is none.
  const ModelComparison* first() const;
};

// Runs without a common step are not comparable; that is no error. A difference of random
// generators, of the environment, of times or of the number of workers alone does not make runs
// different.
// Memory: two steps, and 400 bytes for each step of the longer run. Errors: those of reading the
// runs.
Result<Comparison> compare(const RunLog& a, const RunLog& b);

}  // namespace presum::compare
