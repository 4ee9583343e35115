// SPDX-License-Identifier: Apache-2.0
#include "checks/engine/rules.h"

#include <algorithm>

#include "checks/job/resume_mismatch.h"

namespace presum::checks {

Rules::Rules() {
  for (const Check check : catalog()) {
    const auto made = std::ranges::find_if(
        rules_, [&](const Made& m) { return m.checks.front()->make == check->make; });
    if (made != rules_.end()) {
      made->checks.push_back(check);
    } else {
      rules_.push_back({{check}, check->make()});
      if (check == &kResumeMismatch) resume_ = static_cast<Resume*>(rules_.back().rule.get());
    }
  }
}

void Rules::update(const StepContext& context, SignalLog& log) {
  for (const auto& [checks, rule] : rules_) {
    if (!checks.front()->compares_ranks || !context.alone()) {
      rule->update(context, log);
    } else {
      for (const Check check : checks) log.cannot(check, kOneWorker);
    }
  }
}

void Rules::pass_over(const Pass& pass, const Roster& roster, SignalLog& log) {
  for (const auto& made : rules_) made.rule->pass_over(pass, roster, log);
}

void Rules::farewell(std::uint32_t rank, const FinalState& last, const Roster& roster,
                     SignalLog& log) {
  for (const auto& made : rules_) made.rule->farewell(rank, last, roster, log);
}

void Rules::beats() {
  for (const auto& made : rules_) made.rule->beats();
}

}  // namespace presum::checks
