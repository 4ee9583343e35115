// SPDX-License-Identifier: Apache-2.0
// Rules: each looks at every step for one or more checks. How to add one: docs/findings.md.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "checks/engine/step_context.h"
#include "presum/stall.h"

namespace presum::checks {

class Resume;

// Parts of other rules.
std::unique_ptr<Rule> make_layers_reduced();    // findings of the Reduction rule, per layer
std::unique_ptr<Rule> make_repeated_batches();  // reports overlapping-data
std::unique_ptr<Rule> make_batch_sizes();       // reports token-imbalance

// A stall that has begun or ended.
void report_stall(const Stall& stall, SignalLog& log);

// The rules of all checks, with their memory of one model. Not synchronized.
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
    std::vector<Check> checks;  // of this rule
    std::unique_ptr<Rule> rule;
  };
  std::vector<Made> rules_;   // by the precedence of their first check
  Resume* resume_ = nullptr;  // points into rules_
};

}  // namespace presum::checks
