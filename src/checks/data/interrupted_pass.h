// SPDX-License-Identifier: Apache-2.0
// resume-mismatch: the samples of the pass over the data in which a run was interrupted.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "checks/data/last_pass.h"
#include "checks/engine/passes.h"
#include "checks/engine/roster.h"
#include "checks/engine/step_context.h"

namespace presum::checks {

// What resume-mismatch says of a run that went on, at its first step.
Signal resume_signal(Blame blame, std::size_t workers, Evidence seen);

// Holds the first pass of a run that goes on against what was drawn of it before. Nothing is said
// before `goes_on_from`, nor after `forget`.
class InterruptedPass {
 public:
  // `before`: the pass that was under way; it went on from its draws below `step`, on these ranks.
  void goes_on_from(LastPass before, std::uint64_t step, Ranks ranks, const Roster& roster,
                    SignalLog& log);
  void forget();
  // A step of it: whether some ranks went on in the pass, and others began it anew.
  void see(const StepRecord& record, SignalLog& log);
  void over(const Pass& pass, const Roster& roster, SignalLog& log);

 private:
  void judge(const Roster& roster, SignalLog& log);
  void compare(const Roster& roster, SignalLog& log) const;
  void other_data(SignalLog& log) const;
  Signal signal_of(Evidence seen) const;

  struct Draws {
    std::uint64_t all = 0;
    std::uint64_t again = 0;  // of them, that were drawn before the interruption
  };

  bool count(const StepRecord& record);
  double again_by_chance(const Draws& draws) const;
  bool began_anew(const Draws& draws) const;
  bool went_on(const Draws& draws) const;

  LastPass before_;
  std::optional<Pass> pass_;              // that it was gone on with, once that is over
  std::uint64_t step_ = 0;                // of the run that was left
  Ranks ranks_;                           // none before it is known where the run went on from
  bool judged_ = false;                   // or not to be
  SampleSet drawn_{0};                    // before the interruption
  std::uint64_t first_ = 0;               // how many of them
  std::optional<std::uint64_t> number_;   // of the pass, as the run counts that goes on
  std::map<std::uint32_t, Draws> draws_;  // in it, by rank
  bool counts_ = false;
  bool parted_ = false;  // some ranks went on, others did not
};

}  // namespace presum::checks
