// SPDX-License-Identifier: Apache-2.0
// resume-mismatch.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "checks/data/interrupted_pass.h"
#include "checks/engine/roster.h"
#include "checks/engine/step_context.h"
#include "checks/job/prior_run.h"
#include "presum/step_record.h"

namespace presum::checks {

// Compares a continued run with what it left: weights, optimizer state, random generators, samples
// of the interrupted pass, settings, and the learning-rate schedule. The optimizer's own step count
// identifies the snapshot; without it, the weights do. If the optimizer is new or counts
// differently, only the weights are compared.
class Resume final : public Rule {
 public:
  void resumes(PriorRun prior) { prior_ = std::move(prior); }
  void begins(const Identity& who, const TrainingSnapshot& snapshot, const Roster& roster,
              SignalLog& log);
  void update(const StepContext& context, SignalLog& log) override;
  void pass_over(const Pass& pass, const Roster& roster, SignalLog& log) override;
  // Of several snapshots with the same parameters, the last one.
  const BeganWith& began_with() const { return began_with_; }

 private:
  Snapshots now() const;
  const SnapshotRecord* matching(SignalLog& log) const;
  void with_another_optimizer(const char* why, SignalLog& log) const;
  void judge(const Roster& roster, SignalLog& log);
  bool judge_weights(const Snapshots& then, const Snapshots& now, const Roster& roster,
                     SignalLog& log);
  void judge_generators(const Snapshots& then, const Snapshots& now, SignalLog& log) const;
  void judge_settings(const SnapshotRecord& one, const Snapshots& then, SignalLog& log) const;
  void judge_rates(const StepContext& context, SignalLog& log);
  Signal signal_of(Blame blame, Evidence seen) const;
  Blame blame_of(const std::set<std::uint32_t>& replicas) const;

  std::optional<PriorRun> prior_;
  std::map<std::uint32_t, TrainingSnapshot> begun_;  // by replica
  std::map<std::uint32_t, std::uint32_t> ranks_;     // by replica
  std::optional<std::uint64_t> step_;                // of the earlier run, at the snapshot
  bool judged_ = false;
  BeganWith began_with_;
  std::vector<double> rates_;  // of the first steps
  InterruptedPass pass_;
};

}  // namespace presum::checks
