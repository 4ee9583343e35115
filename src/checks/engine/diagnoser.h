// SPDX-License-Identifier: Apache-2.0
// Turns alarms and fingerprints into findings: docs/findings.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "checks/engine/check.h"
#include "detect/detector.h"
#include "detect/slow_workers.h"
#include "presum/finding.h"
#include "presum/packet.h"
#include "presum/stall.h"
#include "presum/step_record.h"

namespace presum::checks {

struct BeganWith;
struct PriorRun;
struct RankEnd;

// Finds what is wrong with one model of one segment.
//
// Thread-safety: not synchronized. Memory is bounded for any input (samples of a long epoch are
// thinned out). Never throws. Deterministic.
class Diagnoser {
 public:
  explicit Diagnoser(const ModelKey& model);
  Diagnoser(Diagnoser&&) noexcept;
  Diagnoser& operator=(Diagnoser&&) noexcept;
  ~Diagnoser();

  // What earlier segments left. Call before anything else.
  void resumes(PriorRun prior);
  void hello(const Identity& who, const WorkerFacts& facts);
  // Some model of the job has a data-parallel group with this many ranks.
  void group(std::size_t ranks);
  void snapshot(const Identity& who, const TrainingSnapshot& snapshot);
  // Ranks send signs of life; a stall has begun or ended.
  void beats();
  void stalled(const Stall& stall);
  // The ranks that ended before the job did, as known now.
  void ended(const std::optional<RankEnd>& end);
  // A rank's last packet.
  void farewell(const Identity& who, const FinalState& last);
  // REQUIRES: ascending steps. `alarms` and `times`: the detectors' results for the record.
  void update(const StepRecord& record, const detect::StepAlarms& alarms,
              const detect::TimeAlarms& times = {});

  // As far as ranks have reported; before the first `update`.
  const BeganWith& began_with() const;

  // One finding per cause, worst first, then by first step. A finding keeps its id while it grows;
  // ids are not reused.
  struct Numbered {
    std::uint64_t id = 0;
    Finding finding;
  };
  std::vector<Numbered> findings() const;
  // Every check, in the order of the catalog.
  std::vector<CheckRecord> checks() const;

 private:
  void judge(const StepRecord& record, const detect::StepAlarms& alarms,
             const detect::TimeAlarms& times);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace presum::checks
