// SPDX-License-Identifier: Apache-2.0
// Finds where two runs begin to differ, as facts; wording.h puts them into words. Pure functions of
// the run logs' contents; thread-safety: that of the logs. docs/compare.md defines the comparison.
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

// The stages of a step, in order. The first three are its inputs, the others are numbers.
enum class Stage : std::uint8_t {
  kConfiguration,
  kData,
  kRandom,
  kParameters,   // parameters and buffers, before the step's forward pass
  kTokenWeight,  // of one target token in a rank's loss
  kLoss,
  kGradient,   // each rank's own
  kReduction,  // the gradient after the reduction
  kFinal,      // the parameters after the last step
};
inline constexpr std::size_t kStages = 9;
// "configuration", "data", "random-generators", "parameters", "token-weight", "loss",
// "local-gradient", "reduction", "final-parameters".
std::string_view to_string(Stage stage);

// How the runs differ at one step and stage. Ranks are those of run A.
struct Difference {
  std::uint64_t step = 0;
  // Ranks that differ, ascending; empty: not attributed to single ranks.
  std::vector<std::uint32_t> ranks;
  bool all_ranks = false;  // no compared rank is equal
  What what;
  std::vector<std::string> layers;  // groups that differ, in backward order
  std::vector<Evidence> evidence;   // bounded in number
  // The last common step before `step` at which the part that differs was compared and equal: the
  // same parameters, or the loss, gradient or reduced gradient of every rank that differs. Empty:
  // never, or an input stage.
  std::optional<std::uint64_t> last_seen;
};

struct StageSummary {
  std::uint64_t compared = 0;   // number of steps
  std::uint64_t differing = 0;  // number of these that differ
  std::optional<Difference> first;
  // The last step before `first` that was equal in this stage.
  std::optional<std::uint64_t> last_equal;
};

// A run's recorded steps of one model. Steps are counted across restarts; see timeline.h.
struct RecordedSteps {
  std::uint64_t steps = 0;
  std::uint64_t first_step = 0;
  std::uint64_t last_step = 0;
  std::uint32_t workers = 0;  // at the last step
};

// The range of steps in which a difference began, if it is not a single step.
struct Bracket {
  // It began at this step or later. Empty: what differs was not compared before.
  std::optional<std::uint64_t> since;
  std::uint64_t end = 0;  // the step after the last one whose update can be the cause
};

// ---- remarks

// Ranks made fewer optimizer steps in one run, from some step on.
struct FewerUpdates {
  Side run = Side::kA;
  std::uint64_t from = 0;
  std::vector<std::uint32_t> ranks;  // ascending
};

// Random generators that are left out because they were not seeded.
struct UnseededGenerators {
  std::vector<std::uint32_t> kinds;  // kinds of fingerprints, ascending
};

// Random generators differ from some step on, without any effect.
struct IdleGenerators {
  std::vector<std::uint32_t> kinds;  // kinds of fingerprints, ascending
  std::uint64_t from = 0;
  std::optional<std::uint64_t> equal_at;  // a step that was equal all the same; empty: all were
};

// A segment's record is marked as incomplete.
struct IncompleteRecord {
  Side run = Side::kA;
  SegmentInfo segment;
};

// The run was killed, or is still running.
struct UnclosedRun {
  Side run = Side::kA;
};

// How a segment's step numbers continue those of the segments before it.
enum class Alignment : std::uint8_t {
  kFirst,  // the first segment
  // Its first step has the gradients of an earlier step, or else the samples of exactly one.
  kReplays,
  kRestart,  // its first step has the samples and the parameters of step 0
  kAssumed,  // it is assumed to continue after the last recorded step
};

// A run was restarted.
struct Restart {
  Side run = Side::kA;
  std::uint32_t segment = 0;
  std::uint64_t step = 0;  // its first step
  Alignment alignment = Alignment::kAssumed;
};

using Remark = std::variant<FewerUpdates, UnseededGenerators, IdleGenerators, IncompleteRecord,
                            UnclosedRun, Restart>;

// ---- what was not compared, and why

// A stage that was not compared at some of the common steps.
struct UncomparedStage {
  enum class Why : std::uint8_t {
    kNotInA,
    kNotInB,
    kNotInEither,
    kOtherWorkerCounts,
    kSalts,  // the salts differ, so hashes of samples cannot be compared
    kRowsNotKept,
    kOtherParameters,  // the hashes are of different parameters
    kOtherEnds,        // the runs did not end at the same step, or after equally many updates
    kNotRead,          // no gradient was read
    kNoCommonWorker
  };
  Stage stage = Stage::kData;
  std::uint64_t steps = 0;
  Why why = Why::kNotInEither;
};

// A part of a stage that was not compared at some of the common steps.
struct UncomparedPart {
  enum class Part : std::uint8_t { kSampleContents, kUnreadGradients, kMissingRanks };
  Part part = Part::kSampleContents;
  std::uint64_t steps = 0;
};

// Steps that only one run has.
struct StepsOfOneRun {
  Side run = Side::kA;
  std::uint64_t steps = 0;
};

using NotCompared = std::variant<UncomparedStage, UncomparedPart, StepsOfOneRun>;

// ---- times, which do not make runs different

// Mean seconds per step, over ranks and steps.
struct TimeDifference {
  double a = kNaN;
  double b = kNaN;
  double low = kNaN;  // 95% interval of b - a; NaN: too few steps
  double high = kNaN;
  // Whether the interval excludes zero.
  bool differs() const { return low > 0 || high < 0; }
};

struct TimeComparison {
  std::uint64_t steps = 0;                         // common steps with known times in both runs
  TimeDifference own;                              // all phases except the reduction
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
  std::optional<Stage> first;         // empty: everything compared is identical
  std::optional<Stage> first_number;  // the same without the inputs
  // The difference began after this step: the last common step before that of `first`, or the step
  // at which the part that differs was last equal.
  std::optional<std::uint64_t> last_identical;
  std::uint64_t unrecorded = 0;      // optimizer steps after the last recorded one
  bool any_before = false;           // there are common steps before that of `first`
  std::vector<Stage> unseen;         // stages before `first` that were not compared at its step
  bool other_worlds = false;         // equal except for the world size
  std::vector<WorkerCounts> worlds;  // world sizes that differ; each pair once, ascending
  std::uint64_t world_steps = 0;     // number of steps at which they differ
  // Empty: it began where it was found, or there is no difference.
  std::optional<Bracket> bracket;
  std::vector<Remark> remarks;
  std::vector<NotCompared> not_compared;
  std::optional<TimeComparison> times;  // empty: no common step has times in both runs

  // Whether any computed number was compared.
  bool compares_numbers() const;
  // Whether the first difference of `stage` comes before that of `than` (or `than` is empty). At
  // the same step, the earlier stage comes first.
  bool differs_earlier(Stage stage, const std::optional<Stage>& than) const;
  const StageSummary& at(Stage stage) const { return stages[static_cast<std::size_t>(stage)]; }
  StageSummary& at(Stage stage) { return stages[static_cast<std::size_t>(stage)]; }
};

// A fact about the ranks that differs between the runs. Process ids and the like are left out.
struct FactDifference {
  enum class Weight : std::uint8_t {
    kDefining,     // the trainings are different: a difference of the configuration
    kEnvironment,  // may change numbers: a possible cause, but not a difference by itself
    kRecording,    // what presum was set to record
  };
  std::uint32_t model_index = 0;
  std::string key;
  std::vector<std::string> a;  // distinct values of the ranks, not trusted; empty: absent
  std::vector<std::string> b;
  Weight weight = Weight::kEnvironment;
  std::vector<std::uint32_t> ranks;  // ranks that differ; empty: the world sizes differ
  bool all_ranks = false;
  std::uint64_t since = 0;  // the first common step of the segments with these values
};

enum class Outcome : std::uint8_t { kIdentical, kDifferent, kNotComparable };

// Why nothing could be compared.
enum class Obstacle : std::uint8_t {
  kNoStepInA,
  kNoStepInB,
  kNoCommonModel,
  kNoCommonStep,
  kNothingInSteps,  // the common steps have nothing that both runs recorded
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
  std::optional<Obstacle> obstacle;  // why, if kNotComparable
  std::vector<ModelComparison> models;
  std::vector<FactDifference> facts;
  std::vector<ModelOfOneRun> not_compared;
  // The model with the earliest first difference; null if there is none.
  const ModelComparison* first() const;
};

// Compares two runs. Runs without a common step are not comparable, which is not an error. A
// difference in random generators, environment, times or world size alone does not make runs
// different. Memory: two steps, plus 400 bytes per step of the longer run. Errors: those of reading
// the runs.
Result<Comparison> compare(const RunLog& a, const RunLog& b);

}  // namespace presum::compare
