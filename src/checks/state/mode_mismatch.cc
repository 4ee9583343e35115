// SPDX-License-Identifier: Apache-2.0
// **mode-mismatch.** Fingerprints that a rank did not send are not compared. The check also uses
// the number of batches that the model's first BatchNorm has seen, before DDP broadcasts the
// buffers of rank 0: a rank that validates in training mode has more than the others, until the
// next broadcast. Differences of up to two forward passes per micro-batch are tolerated, because
// randomly skipped layers look the same.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "checks/engine/agree.h"
#include "checks/engine/rules.h"

namespace presum::checks {
namespace {

constexpr double kNormSlack = 2;  // forward passes per micro-batch
constexpr const char* kEvaluate =
    "Call `model.eval()` before validation on every rank that validates, and `model.train()` after "
    "it. Without it, BatchNorm learns its statistics from validation data, and DDP sends those of "
    "rank 0 to all ranks.";

struct OtherMode : Differing {};

std::string sentence(const OtherMode& seen, const Who& who) {
  return (who.everyone ? who.the_ranks() + " differ in their mode: "
                       : who.words() + " ran in another mode: ") +
         listed(seen.differ);
}

struct OtherNormBatches {
  std::uint64_t batches_apart = 0;
  static constexpr std::tuple kFields{field("batches_apart", &OtherNormBatches::batches_apart)};
};

std::string sentence(const OtherNormBatches& /*seen*/, const Who& who) {
  return who.everyone
             ? who.the_ranks() + " gave BatchNorm different numbers of batches in training mode"
             : who.words() + " gave BatchNorm batches in training mode that the others did not";
}

class ModeMismatch final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    compare_norm_batches(context, log);
    Mismatch found = compare_kinds(context, &kModeMismatch);
    if (!found.looked) return log.cannot(&kModeMismatch, kNotSent);
    log.checked(&kModeMismatch);
    if (found.seen.differ.empty()) return;
    log.add(sighting(&kModeMismatch, context, std::move(found.blame), 0.95,
                     OtherMode{std::move(found.seen)}),
            1);
  }

 private:
  // If a rank evaluates in training mode, its BatchNorm counts those batches too, until the next
  // broadcast of the buffers. Randomly skipped layers differ by a forward pass or two.
  static void compare_norm_batches(const StepContext& context, SignalLog& log) {
    std::vector<RankNumber> held;
    std::uint64_t least = UINT64_MAX;
    std::uint64_t most = 0;
    std::uint32_t passes = 1;
    for (const WorkerRecord& w : context.record.workers) {
      passes = std::max(passes, w.micro_batches);
      const std::uint64_t* batches = w.fingerprint_of(FingerprintKind::kNormBatches);
      held.push_back({batches == nullptr ? kNaN : static_cast<double>(*batches), w.rank});
      if (batches == nullptr) continue;
      least = std::min(least, *batches);
      most = std::max(most, *batches);
    }
    Blame blame = apart(held, kNormSlack * passes);
    if (blame.ranks.empty()) return;
    Signal signal =
        sighting(&kModeMismatch, context, std::move(blame), 0.9, OtherNormBatches{most - least});
    signal.remedy = kEvaluate;
    log.add(std::move(signal), kAllSteps);
  }
};

}  // namespace

constexpr FingerprintKind kModeMismatchKinds[] = {
    FingerprintKind::kMode, FingerprintKind::kModes, FingerprintKind::kDropout,
    FingerprintKind::kDropouts, FingerprintKind::kNormBatches};
constexpr Check kModeMismatchExplains[] = {&kBufferDesync, &kRankOutlier, &kPairTooSimilar,
                                           &kLossEvent};
constinit const CheckInfo kModeMismatch{
    .id = "mode-mismatch",
    .severity = Severity::kWarning,
    .compares = "training or evaluation mode and dropout rates of all ranks",
    .fires = "immediately; parts of the model, and rates below the largest, within 5 steps",
    .consequence =
        "Some ranks train with dropout or with moving batch statistics, and others without.",
    .cannot_see = "Behavior that does not depend on `training` or a dropout rate.",
    .mistake =
        "if rank == 0:\n    model.eval()\n    evaluate(model)  # and no model.train() after it",
    .fix =
        "Call `model.train()` on every rank after validation, and build the model from the same "
        "configuration.",
    .precedence = 80,
    .explains = kModeMismatchExplains,
    .fingerprints = kModeMismatchKinds,
    .compares_ranks = true,
    .sets_apart = true,
    .make = make<ModeMismatch>,
};

}  // namespace presum::checks
