// SPDX-License-Identifier: Apache-2.0
#include "diagnose/recomputed.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>

#include "diagnose/text.h"

namespace presum::diagnose {
namespace {

struct Answer {
  std::uint64_t value;  // of the fingerprint
  Severity severity;
  const char* title;
};

constexpr std::array<Answer, 3> kAnswers{{
    {2, Severity::kCritical,
     "{Ranks} computed another gradient than the same micro-batch gives, twice, when it is "
     "computed "
     "once more"},
    {3, Severity::kCritical,
     "{Ranks} held parameters or inputs of which one bit turned over between a micro-batch and the "
     "optimiser's step, without a write of the program"},
    {1, Severity::kInfo,
     "{Ranks} compute another gradient each time: the program is not deterministic"},
}};

constexpr std::uint64_t kTwice = 2;
constexpr const char* kEverywhere =
    "{Ranks} computed another gradient than the same micro-batch gives when it is computed once "
    "more: a kernel that depends on more than its numbers";
constexpr std::uint64_t kSlack = std::numeric_limits<std::uint64_t>::max() / 2;

}  // namespace

void Recomputed::update(const StepContext& context, SignalLog& log) {
  const auto answer = [](const WorkerRecord& w) {
    const std::uint64_t* found = w.fingerprint_of(FingerprintKind::kRecomputed);
    return found == nullptr ? std::numeric_limits<std::uint64_t>::max() : *found;
  };
  const auto told = [&](const WorkerRecord& w) { return answer(w) <= kAnswers.size(); };
  once_ = once_ || std::ranges::any_of(context.record.workers, told);
  if (!once_) {
    return log.cannot(Check::kRecomputeMismatch,
                      "No micro-batch was computed once more: attach(verify_every=) asks for it.");
  }
  log.checked(Check::kRecomputeMismatch);
  for (const Answer& one : kAnswers) {
    Blame blame;
    for (const WorkerRecord& w : context.record.workers) {
      if (answer(w) == one.value) insert(blame.ranks, w.rank);
    }
    if (blame.ranks.empty()) continue;
    blame.everyone = blame.ranks.size() == context.workers();
    Signal signal = sighting(Check::kRecomputeMismatch, context.record.step, blame);
    signal.key = one.value;
    signal.severity = one.severity;
    signal.confidence = 0.99;
    signal.title = one.title;
    if (one.value == kTwice && blame.everyone && context.workers() > 1) {
      signal.severity = Severity::kInfo;  // not all their hardware
      signal.title = kEverywhere;
    }
    const std::string different =
        context.roster.fact_of(blame.ranks.front(), "recomputed_different");
    if (!different.empty()) signal.evidence = {{"gradients_different", shortened(different, 200)}};
    log.add(std::move(signal), kSlack);
  }
}

}  // namespace presum::diagnose
