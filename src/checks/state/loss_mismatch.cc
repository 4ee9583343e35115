// SPDX-License-Identifier: Apache-2.0
// **loss-mismatch.** Before a backward pass the graph is walked from the loss down to what the
// model gave, 48 nodes at most; its classes and their settings (reduction, ignore_index, weights,
// factors that are numbers of Python) are told once they were equal in three passes, so that what
// depends on a batch is not. A weight that lies on a device is not read, nor a factor that is a
// whole number, which may be a count of the batch. Ranks of several tasks differ rightly:
// information, and the cause where a statistic shows the same ranks.

#include <string>
#include <utility>

#include "checks/engine/agree.h"
#include "checks/engine/rules.h"

namespace presum::checks {
namespace {

constexpr const char* kNotTold =
    "How losses are computed is known after three passes over equal graphs that reach the model's "
    "output: there were none.";

struct OtherLoss : Differing {};

std::string sentence(const OtherLoss& seen, const Who& who) {
  return (who.everyone ? who.the_ranks() + " compute the loss differently: "
                       : who.words() + " computed the loss differently: ") +
         listed(seen.differ);
}

class LossMismatch final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    const Mismatch& found = facts_.see(context.roster);
    if (!found.looked) return log.waits(&kLossMismatch, kNotTold);
    log.checked(&kLossMismatch);
    if (found.seen.differ.empty()) return;
    log.add(sighting(&kLossMismatch, context, found.blame, 0.8, OtherLoss{found.seen}));
  }

 private:
  PrefixedFacts facts_{"loss."};
};

}  // namespace

constexpr Check kLossMismatchExplains[] = {&kRankOutlier, &kPairTooSimilar, &kTooConsistent,
                                           &kLossEvent};
constinit const CheckInfo kLossMismatch{
    .id = "loss-mismatch",
    .severity = Severity::kInfo,
    .compares = "the functions that make a loss of what the model gives, and their settings",
    .fires = "after three passes; a warning where a statistic shows the same ranks",
    .consequence = "Gradients of different losses are averaged as if they were of one.",
    .cannot_see =
        "A loss that code of torch's compiler makes, or no tensor of torch; weights on a device; "
        "whole-number factors; what depends on the batch.",
    .mistake = "criterion = nn.CrossEntropyLoss(ignore_index=pad_id)  # pad_id is None on one rank",
    .fix = "Make the loss of one configuration on all ranks.",
    .precedence = 305,
    .explains = kLossMismatchExplains,
    .compares_ranks = true,
    .sets_apart = true,
    .names_cause = true,
    .explains_single_ranks = false,
    .make = make<LossMismatch>,
};

}  // namespace presum::checks
