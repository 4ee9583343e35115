// SPDX-License-Identifier: Apache-2.0
// Rules: each looks at every step for one check or more. How to add one: docs/findings.md.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "diagnose/step_context.h"
#include "presum/stall.h"

namespace presum::diagnose {

class Resume;

std::unique_ptr<Rule> make_audits();
std::unique_ptr<Rule> make_clip_norm();
std::unique_ptr<Rule> make_data_coverage();
std::unique_ptr<Rule> make_data_order();
std::unique_ptr<Rule> make_duplicates();
std::unique_ptr<Rule> make_frozen_gradient();
std::unique_ptr<Rule> make_lost_gradients();
std::unique_ptr<Rule> make_manifest();
std::unique_ptr<Rule> make_nonfinite_gradient();
std::unique_ptr<Rule> make_nonfinite_loss();
std::unique_ptr<Rule> make_overlap();
std::unique_ptr<Rule> make_pace();
std::unique_ptr<Rule> make_presence();
std::unique_ptr<Rule> make_progress();
std::unique_ptr<Rule> make_rank_ended();
std::unique_ptr<Rule> make_recomputed();
std::unique_ptr<Rule> make_reduction();
std::unique_ptr<Rule> make_resume();
std::unique_ptr<Rule> make_rng();
std::unique_ptr<Rule> make_sampler();
std::unique_ptr<Rule> make_settings();
std::unique_ptr<Rule> make_slow_workers();
std::unique_ptr<Rule> make_stalls();
std::unique_ptr<Rule> make_states();
std::unique_ptr<Rule> make_statistics();
std::unique_ptr<Rule> make_zero_gradient();
// Parts of other rules.
std::unique_ptr<Rule> make_layers_reduced();    // of what is made of whole gradients
std::unique_ptr<Rule> make_batch_sizes();       // says it as a token-imbalance
std::unique_ptr<Rule> make_repeated_batches();  // as overlapping-data

// A stall that has begun, or is over.
void report_stall(const Stall& stall, SignalLog& log);

// Whether the signal is of ranks whose gradients pointed away from the others'.
bool is_turned_away(const Signal& signal);

// Every rule with what it remembers of one model. The table in rules.cc says which checks a rule
// makes. Not synchronised.
class Rules {
 public:
  Rules();
  void update(const StepContext& context, SignalLog& log);
  void farewell(std::uint32_t rank, const FinalState& last, const Roster& roster, SignalLog& log);
  void beats();
  Resume& resume() { return *resume_; }

 private:
  std::vector<std::unique_ptr<Rule>> rules_;  // as in the table
  Resume* resume_ = nullptr;                  // one of them
};

}  // namespace presum::diagnose
