// SPDX-License-Identifier: Apache-2.0
// Rules: each looks at every step for one check or more. How to add one: docs/findings.md.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "checks/engine/step_context.h"
#include "presum/stall.h"

namespace presum::checks {

class Resume;

// Parts of other rules.
std::unique_ptr<Rule> make_layers_reduced();    // of what is made of whole gradients
std::unique_ptr<Rule> make_repeated_batches();  // as overlapping-data
std::unique_ptr<Rule> make_batch_sizes();       // as token-imbalance

// A stall that has begun, or is over.
void report_stall(const Stall& stall, SignalLog& log);

// The rule of every check with what it remembers of one model. Not synchronized.
class Rules {
 public:
  Rules();
  void update(const StepContext& context, SignalLog& log);
  void pass_over(const Pass& pass, const Roster& roster, SignalLog& log);
  void farewell(std::uint32_t rank, const FinalState& last, const Roster& roster, SignalLog& log);
  void beats();
  Resume& resume() { return *resume_; }

 private:
  struct Made {
    std::vector<Check> checks;  // of one rule
    std::unique_ptr<Rule> rule;
  };
  std::vector<Made> rules_;   // by the precedence of their first check
  Resume* resume_ = nullptr;  // one of them
};

}  // namespace presum::checks
