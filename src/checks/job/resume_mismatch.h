// SPDX-License-Identifier: Apache-2.0
// resume-mismatch.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "checks/data/interrupted_pass.h"
#include "checks/data/pass_draws.h"
#include "checks/engine/roster.h"
#include "checks/engine/step_context.h"
#include "presum/step_record.h"

namespace presum::checks {

// What the earlier segments of a run left of one model.
struct PriorRun {
  std::vector<SnapshotRecord> saved;      // by segment, step and number
  bool left_out = false;                  // some of them: they were too large
  std::map<std::uint32_t, double> begun;  // by segment: at how many optimiser steps it began
  std::uint32_t workers = 0;              // of the last segment; 0: not known
  std::vector<double> rates;              // learning rates of the steps before what was saved last
  PassDraws draws{PassDraws::Which::kLast};  // of the pass that was interrupted, in the last one
};

// With which parameters a run that continues began.
struct BeganWith {
  enum class Parameters : std::uint8_t {
    kUnknown,  // not all ranks have told, or nothing was saved of this model
    kOthers,   // none of those that were saved
    kSaved,    // those that were saved in this segment, before this step
  };
  Parameters parameters = Parameters::kUnknown;
  std::uint32_t segment = 0;
  std::uint64_t step = 0;
};

// Holds a run that continues against what it left: weights, optimiser state, random generators,
// samples of the pass that was interrupted, settings, the schedule of the learning rate. Where a
// program stands is told by its optimiser's own count of steps, else by its weights: one whose
// optimiser is new, or counts otherwise, is held against the weights that were saved alone.
class Resume final : public Rule {
 public:
  void resumes(PriorRun prior) { prior_ = std::move(prior); }
  void begins(const Identity& who, const TrainingSnapshot& snapshot, const Roster& roster,
              SignalLog& log);
  void update(const StepContext& context, SignalLog& log) override;
  void farewell(std::uint32_t rank, const FinalState& last, const Roster& roster,
                SignalLog& log) override;
  // Of several snapshots with the same parameters the last.
  const BeganWith& began_with() const { return began_with_; }

 private:
  // Snapshots of all workers at one step.
  using Workers = std::map<std::uint32_t, const TrainingSnapshot*>;  // by replica

  Workers now() const;
  const SnapshotRecord* matching(SignalLog& log) const;
  void with_another_optimizer(const char* why, SignalLog& log) const;
  void judge(const Roster& roster, SignalLog& log);
  bool judge_weights(const Workers& then, const Workers& now, const Roster& roster, SignalLog& log);
  void judge_generators(const Workers& then, const Workers& now, SignalLog& log) const;
  void judge_settings(const SnapshotRecord& one, const Workers& then, SignalLog& log) const;
  void judge_rates(const StepContext& context, SignalLog& log);
  Signal signal_of(Blame blame, Evidence seen) const;
  Blame blame_of(const std::set<std::uint32_t>& replicas) const;

  std::optional<PriorRun> prior_;
  std::map<std::uint32_t, TrainingSnapshot> begun_;  // by replica
  std::map<std::uint32_t, std::uint32_t> ranks_;     // likewise
  std::optional<std::uint64_t> step_;                // of the run that was left, at that moment
  bool judged_ = false;
  BeganWith began_with_;
  std::vector<double> rates_;  // of the first steps
  InterruptedPass pass_;
};

}  // namespace presum::checks
