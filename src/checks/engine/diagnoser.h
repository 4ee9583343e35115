// SPDX-License-Identifier: Apache-2.0
// Alarms and fingerprints become findings: docs/findings.md.
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
// Thread-safety: not synchronized. Memory is bounded whatever the records hold (samples of a long
// epoch are thinned out). Never throws. Deterministic.
class Diagnoser {
 public:
  explicit Diagnoser(const ModelKey& model);
  Diagnoser(Diagnoser&&) noexcept;
  Diagnoser& operator=(Diagnoser&&) noexcept;
  ~Diagnoser();

  // What earlier segments left; before anything else.
  void resumes(PriorRun prior);
  void hello(const Identity& who, const WorkerFacts& facts);
  // A data-parallel group of some model of the job has so many ranks.
  void group(std::size_t ranks);
  void snapshot(const Identity& who, const TrainingSnapshot& snapshot);
  // Ranks tell where they stand; a stall that has begun, or is over.
  void beats();
  void stalled(const Stall& stall);
  // Which ranks ended before the job did, as it is known now.
  void ended(const std::optional<RankEnd>& end);
  // A worker's last words.
  void farewell(const Identity& who, const FinalState& last);
  // REQUIRES: ascending steps. `alarms` and `times`: what detectors say of the record.
  void update(const StepRecord& record, const detect::StepAlarms& alarms,
              const detect::TimeAlarms& times = {});

  // As far as all ranks have told; before the first `update`.
  const BeganWith& began_with() const;

  // One finding a cause, worst first, then by first step. An id stays with its finding while it
  // grows; ids are not reused.
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
