// SPDX-License-Identifier: Apache-2.0
// **loss-mismatch.** Before a backward pass, presum walks the graph from the loss down to the
// model's output, over at most 48 nodes. Ranks send its classes and their settings (reduction,
// ignore_index, weights, factors that are Python numbers) once these were equal in three passes,
// which excludes everything that depends on a batch. A weight on a device is not read, nor a
// whole-number factor, which may be a count of the batch. Ranks that train on several tasks differ
// for good reason, so this is information; it is the cause if a statistic shows the same ranks.

#include <string>
#include <utility>

#include "checks/engine/agree.h"
#include "checks/engine/rules.h"

namespace presum::checks {
namespace {

constexpr const char* kNotTold =
    "How losses are computed becomes known after three passes over equal graphs that reach the "
    "model's output; there were none.";

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
    if (!found.looked && context.roster.sees_no_program()) {
      return log.cannot(&kLossMismatch, kSeesNoProgram);
    }
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
    .compares = "the functions that compute a loss from the model's output, and their settings",
    .fires = "after three passes; a warning if a statistic shows the same ranks",
    .consequence = "Gradients of different losses are averaged as if they came from the same loss.",
    .cannot_see =
        "A loss that torch-compiled code computes, or that is not a torch tensor; weights on a "
        "device; whole-number factors; everything that depends on the batch.",
    .mistake = "criterion = nn.CrossEntropyLoss(ignore_index=pad_id)  # pad_id is None on one rank",
    .fix = "Configure the loss identically on every rank.",
    .precedence = 305,
    .explains = kLossMismatchExplains,
    .compares_ranks = true,
    .sets_apart = true,
    .names_cause = true,
    .explains_single_ranks = false,
    .make = make<LossMismatch>,
};

}  // namespace presum::checks
