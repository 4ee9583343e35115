// SPDX-License-Identifier: Apache-2.0
// resume-mismatch: the samples of the pass over the data in which a run was interrupted.
#pragma once

#include <cstdint>
#include <map>

#include "checks/data/pass_draws.h"
#include "checks/engine/roster.h"
#include "checks/engine/step_context.h"

namespace presum::checks {

// What resume-mismatch says of a run that went on, at its first step.
Signal resume_signal(Blame blame, std::size_t workers, Evidence seen);

// Holds the first pass of a run that goes on against what was drawn of it before. Nothing is said
// before `goes_on_from`, nor after `forget`.
class InterruptedPass {
 public:
  using Ranks = std::map<std::uint32_t, std::uint32_t>;  // by replica

  // `before`: the pass that was under way; it went on from its draws below `step`.
  void goes_on_from(PassDraws before, std::uint64_t step, Ranks ranks, SignalLog& log);
  void forget();
  void update(const StepContext& context, SignalLog& log);
  void farewell(std::uint32_t rank, const FinalState& last, SignalLog& log);

 private:
  bool ended() const;
  void judge(SignalLog& log);
  void compare(SignalLog& log) const;
  void other_data(SignalLog& log) const;
  Signal signal_of(Evidence seen) const;

  PassDraws before_{PassDraws::Which::kLast};
  PassDraws draws_{PassDraws::Which::kFirst};
  std::uint64_t step_ = 0;  // of the run that was left
  Ranks ranks_;             // none before it is known where the run went on from
  bool over_ = false;       // it was judged, or is not
  bool deals_all_ = false;  // the sampler does
  // By rank: the batch after the last of the pass.
  std::map<std::uint32_t, std::uint64_t> farewells_;
  std::uint64_t last_step_ = 0;
};

}  // namespace presum::checks
