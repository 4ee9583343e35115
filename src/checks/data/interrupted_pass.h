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

// What resume-mismatch reports at the first step of a resumed run.
Signal resume_signal(Blame blame, std::size_t workers, Evidence seen);

// Compares the first pass of a resumed run with what was drawn of that pass before. Reports nothing
// before `goes_on_from`, nor after `forget`.
class InterruptedPass {
 public:
  // `before`: the interrupted pass; the run resumed after its draws below `step`, on these ranks.
  void goes_on_from(LastPass before, std::uint64_t step, Ranks ranks, const Roster& roster,
                    SignalLog& log);
  void forget();
  // A step of the pass: whether some ranks continued it while others restarted it.
  void see(const StepRecord& record, SignalLog& log);
  void over(const Pass& pass, const Roster& roster, SignalLog& log);

 private:
  void judge(const Roster& roster, SignalLog& log);
  void compare(const Roster& roster, SignalLog& log) const;
  void other_data(SignalLog& log) const;
  Signal signal_of(Evidence seen) const;

  struct Draws {
    std::uint64_t all = 0;
    std::uint64_t again = 0;  // of them, drawn before the interruption
  };

  bool count(const StepRecord& record);
  double again_by_chance(const Draws& draws) const;
  bool began_anew(const Draws& draws) const;
  bool went_on(const Draws& draws) const;

  LastPass before_;
  std::optional<Pass> pass_;              // the resumed pass, once it is over
  std::uint64_t step_ = 0;                // of the interrupted run
  Ranks ranks_;                           // empty until it is known where the run resumed from
  bool judged_ = false;                   // or must not be judged
  SampleSet drawn_{0};                    // before the interruption
  std::uint64_t first_ = 0;               // the number of samples in drawn_
  std::optional<std::uint64_t> number_;   // of the pass, as the resumed run counts
  std::map<std::uint32_t, Draws> draws_;  // in the pass, by rank
  bool counts_ = false;
  bool parted_ = false;  // some ranks continued, others did not
};

}  // namespace presum::checks
